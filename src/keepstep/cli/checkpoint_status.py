"""``keepstep checkpoint status``: which checkpoint of a run a rollback could use."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from keepstep.checkpoint.copies import copies_folder
from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.ledger import LedgerError, ledger_of
from keepstep.checkpoint.standing import Standing, newest_readable_copy, standings
from keepstep.checkpoint.status import Status, Step, find_status
from keepstep.checkpoint.store import LocalStore, Store, open_store
from keepstep.checkpoint.testload import Proof, last_proof
from keepstep.checkpoint.window import Window, window_of
from keepstep.cli.checkpoint_answer import RootArgument, answered, count_text
from keepstep.cli.checkpoint_window import (
    due_lines,
    standing_facts,
    standing_text,
    window_facts,
    window_line,
)
from keepstep.exit_codes import ExitCode

_SHOWN = 10


@answered
def status(
    root: RootArgument,
    wanted: Annotated[
        str, typer.Option("--for", help="The PyTorch to go back to.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Say which is the newest checkpoint that an older PyTorch can read."""
    minor = minor_of(wanted)
    store = open_store(root)
    copy = newest_readable_copy(store, minor)
    found = _find(store, minor, copy)
    readable = found.newest_readable
    proof = None if readable is None else last_proof(store.below(readable.name), minor)
    if copy is not None and readable is not None and copy.step <= readable.step:
        copy = None  # the run itself is as good
    window, trouble = _window(store)
    standing = standings(store, window) if window is not None else ()
    if as_json:
        facts = {
            "behind": found.behind,
            "test_load": proof and _proof_json(proof),
            "newer_copy": copy and str(_copy_path(store, copy)),
            "window": window and window_facts(window),
            "protected": standing_facts(standing),
            "ledger_error": trouble,
        }
        print(json.dumps({"root": root, "for": minor, **asdict(found), **facts}))
    else:
        lines = _lines(root, minor, found, proof)
        if copy is not None:
            lines.insert(1, f"  it can read the newer copy {_copy_path(store, copy)}")
        lines += _window_lines(root, window, standing, trouble)
        print("\n".join(lines + _next_lines(root, minor, found)))
    if readable is not None or copy is not None:
        return ExitCode.PASS
    return ExitCode.FAIL if found.newest is not None else ExitCode.INCONCLUSIVE


def _find(store: Store, minor: str, copy: Step | None) -> Status:
    try:
        return find_status(store, minor)
    except NotACheckpointError as error:
        if copy is None:
            raise
        path = _copy_path(store, copy)
        raise NotACheckpointError(
            f"{error}. There is a copy that PyTorch {minor} can read: {path}"
        ) from None


def _window(store: Store) -> tuple[Window | None, str]:
    """Return the window that is open, and why that is not known."""
    try:
        return window_of(ledger_of(store).read()), ""
    except LedgerError as error:
        return None, str(error)
    except CheckpointError:  # nothing can lie beside it, so there is no window
        return None, ""


def _copy_path(store: Store, copy: Step) -> Path:
    assert isinstance(store, LocalStore), "only these have copies"
    return copies_folder(store) / copy.name


def _window_lines(
    root: str, window: Window | None, standing: tuple[Standing, ...], trouble: str
) -> list[str]:
    if trouble:
        return [f"  rollback window: not known: {trouble}"]
    if window is None:
        return []
    lines = [f"  {window_line(window)}"]
    lines += [f"    protected: {standing_text(each)}" for each in standing]
    if not standing:
        lines.append("    it protects nothing yet")
    return lines + due_lines(root, window)


def _proof_json(proof: Proof) -> dict[str, Any]:
    record = asdict(proof.record)
    told = ("environment", "python", "when", "verdict", "level", "error")
    return {**{name: record[name] for name in told}, "stale": proof.stale}


def _proof_lines(where: str, minor: str, proof: Proof | None) -> list[str]:
    command = f"keepstep checkpoint test-load {where} --python EXE"
    if proof is None:
        return [f"  never test-loaded with PyTorch {minor}: {command}"]
    record = proof.record
    lines = [
        f"  last test-loaded with PyTorch {record.torch} ({record.python}) at {record.when}: "
        + record.verdict
    ]
    if proof.stale:
        lines += [f"  stale: {reason}" for reason in proof.stale]
        lines.append(f"  prove it again: {command}")
    return lines


def _lines(root: str, minor: str, found: Status, proof: Proof | None) -> list[str]:
    readable, newest = found.newest_readable, found.newest
    if readable is not None:
        first = f"{root}: PyTorch {minor} can go back to {readable.name}"
        first += f", {count_text(found.behind, 'step')} behind" if found.behind else ", the newest"
    elif newest is not None:
        first = f"{root}: PyTorch {minor} can read none of the checkpoints"
    else:
        first = f"{root}: there is no complete checkpoint"
    lines = [first]
    if newest is not None and found.behind != 0:
        lines.append(f"  the newest is {newest.name}")
    lines.append(f"  {count_text(found.steps, 'folder')}, {found.looked_at} looked at")
    if readable is not None:
        lines += _proof_lines(f"{root.rstrip('/')}/{readable.name}", minor, proof)
    if found.incomplete:
        lines.append(f"  without metadata: {_some(found.incomplete)}")
    return lines + [f"  not judged: {text}" for text in found.unreadable[:_SHOWN]]


def _next_lines(root: str, minor: str, found: Status) -> list[str]:
    if found.newest is None or found.behind == 0:
        return []
    where = f"{root.rstrip('/')}/{found.newest.name}"
    return [f"next: keepstep checkpoint downgrade {where} --for {minor} --dry-run"]


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
