"""``keepstep checkpoint downgrade``: make a checkpoint readable for an older PyTorch, and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from keepstep.checkpoint.downgrade import Conversion, convert, put_in_place, undo
from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.sibling import Placement, choose_placement, make_sibling
from keepstep.checkpoint.store import LocalStore, RemoteStore, Store, open_store
from keepstep.cli.checkpoint_answer import PathArgument, answered
from keepstep.exit_codes import ExitCode

_HAZARDS = {
    Placement.LINK: "the data files are hard links: a trainer that saves into one of the folders "
    "again overwrites the data of both. Where that may happen: --placement copy",
    Placement.REFLINK: "",
    Placement.COPY: "",
}


@answered
def downgrade(
    source: PathArgument,
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A new folder for the result; without it the metadata is replaced in place.",
            metavar="[DST]",
            show_default=False,
        ),
    ] = None,
    wanted: Annotated[
        str | None, typer.Option("--for", help="The PyTorch that shall load it, such as 2.14.")
    ] = None,
    take_back: Annotated[
        bool, typer.Option("--undo", help="Put the original metadata back in place.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Convert, check, try the placement; change nothing.")
    ] = False,
    placement: Annotated[
        Placement | None,
        typer.Option(help="How data files get to DST (default: the first that works)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Make a checkpoint readable for an older PyTorch; only metadata is written."""
    store = open_store(source)
    if take_back:
        if wanted is not None or target is not None or dry_run:
            raise ValueError("--undo takes the checkpoint and nothing else")
        names = undo(store)
        _say(as_json, {"undone": names}, [f"{source}: restored {', '.join(names)}"])
        return ExitCode.PASS
    if wanted is None:
        raise ValueError("downgrade needs --for, such as --for 2.14 (or --undo)")
    minor = minor_of(wanted)
    if target is not None and not isinstance(store, LocalStore):
        raise ValueError(f"{source}: only a local checkpoint can be converted to another folder")
    if target is None and placement is not None:
        raise ValueError("--placement is about the data files of DST: give one")
    return _downgrade(store, target, minor, placement, dry_run, as_json)


def _downgrade(
    store: Store,
    target: Path | None,
    minor: str,
    placement: Placement | None,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    if target is not None and isinstance(store, LocalStore):
        placement = placement or choose_placement(store.path, target)
    else:
        _check_writable(store)
    done = convert(store, minor)
    if not dry_run:
        if target is not None and placement is not None and isinstance(store, LocalStore):
            make_sibling(store, target, done, placement)
        else:
            for conversion in done:
                put_in_place(store, conversion)
    facts = _facts(store, target, minor, placement, dry_run, done)
    _say(as_json, facts, _lines(store, target, minor, placement, dry_run, done))
    return ExitCode.PASS


def _check_writable(store: Store) -> None:
    if not isinstance(store, LocalStore):
        return
    store.folders()  # says so if there is none
    if not os.access(store.path, os.W_OK):
        raise CheckpointError(f"{store.address}: no permission to write here: give a DST")


def _facts(
    store: Store,
    target: Path | None,
    minor: str,
    placement: Placement | None,
    dry_run: bool,
    done: list[Conversion],
) -> dict[str, Any]:
    return {
        "path": store.address,
        "target": target and str(target),
        "for": minor,
        "dry_run": dry_run,
        "placement": placement or "in place",
        "changed": bool(done) and not dry_run,
        "reason": _why_unchanged(minor, dry_run, done),
        "verified": bool(done),
        "files": {
            each.name: {
                "strides_dropped": each.after.strides,
                "storage_meta_dropped": each.after.storage_meta,
                "old_module": each.after.old_home,
                "python_313_path_mended": each.after.python_313,
                "bytes": [len(each.before), len(each.after.data)],
            }
            for each in done
        },
    }


def _why_unchanged(minor: str, dry_run: bool, done: list[Conversion]) -> str | None:
    """Return why no metadata was written; None where it was."""
    if not done:
        return f"already readable by {minor}"
    return "a dry run" if dry_run else None


def _lines(
    store: Store,
    target: Path | None,
    minor: str,
    placement: Placement | None,
    dry_run: bool,
    done: list[Conversion],
) -> list[str]:
    where = store.address if target is None else str(target)
    if not done:
        first = f"{store.address}: PyTorch {minor} can load it as it is"
        if target is not None and not dry_run:
            first += f"; {target} holds the same"
        return [first, _data_line(store)]
    would = "would be able to load" if dry_run else "can load"
    lines = [f"{where}: PyTorch {minor} {would} it, and newer ones as before"]
    for each in done:
        lines.append(f"  {each.name}: {_changes(each)}; all else was compared and is equal")
    lines.append(_data_line(store))
    if target is not None and placement is not None:
        lines.append(f"  data files: {placement}")
        if _HAZARDS[placement]:
            lines.append(f"  {_HAZARDS[placement]}")
        if target.absolute().parent == Path(store.address).absolute().parent:
            lines.append(
                "  it lies among the trainer's own checkpoints: one that searches names for step "
                "numbers may load or delete it as if it were its own"
            )
    elif isinstance(store, RemoteStore) and not store.conditional:
        lines.append("  this store has no conditional write: nobody else may write at the moment")
    if dry_run:
        lines.append("nothing was changed; do it: the same command without --dry-run")
    elif target is None:
        lines.append(f"take it back: keepstep checkpoint downgrade {where} --undo")
    return lines


def _data_line(store: Store) -> str:
    return (
        "  every data file is there and long enough; their content was not read: "
        f"keepstep checkpoint verify {store.address}"
    )


def _changes(conversion: Conversion) -> str:
    after = conversion.after
    said = (
        (after.strides, f"dropped the strides of {after.strides:,} tensors, which no loader reads"),
        (after.storage_meta, "dropped StorageMeta"),
        (after.old_home, "named the classes by their old module"),
        (after.python_313, "named the path's class as every Python does"),
    )
    return ", ".join(text for happened, text in said if happened)


def _say(as_json: bool, facts: dict[str, Any], lines: list[str]) -> None:
    print(json.dumps(facts) if as_json else "\n".join(lines))
