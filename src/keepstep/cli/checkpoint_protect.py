"""``keepstep checkpoint protect``: open or renew a rollback window."""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated

import typer

from keepstep.checkpoint.choice import copy_of
from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.protect import Protection, Terms
from keepstep.checkpoint.protect import protect as open_window
from keepstep.checkpoint.sibling import Placement
from keepstep.checkpoint.store import LocalStore, Store, open_store
from keepstep.cli.checkpoint_answer import RootArgument, answered, count_text, size_text
from keepstep.cli.checkpoint_window import (
    mark_text,
    test_load_command,
    window_facts,
    window_line,
)
from keepstep.exit_codes import ExitCode

_HAZARD = (
    "hard links share their bytes: a trainer that saves the same step again overwrites the copy "
    "too (status notices). Where that may happen: --placement copy"
)


@answered
def protect(
    root: RootArgument,
    wanted: Annotated[
        str | None,
        typer.Option("--for", help="The PyTorch to go back to.", show_default=False),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Who decides about it.", show_default=False)
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Its last day, such as 2026-12-24 (UTC).", show_default=False),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="What must hold before it is finalized; may be repeated."),
    ] = None,
    placement: Annotated[
        Placement | None,
        typer.Option(help="How copies get their data (default: reflink or link, if possible)."),
    ] = None,
    marks_only: Annotated[
        bool, typer.Option("--marks-only", help="Make no copies beside the run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Open a rollback window, or renew it: keep the newest readable and test-loaded checkpoint."""
    if marks_only and placement is not None:
        raise ValueError("--placement is about the copies that --marks-only leaves out")
    store = open_store(root)
    if placement is not None and not isinstance(store, LocalStore):
        raise ValueError(f"{root}: copies beside the run are made of local checkpoints only")
    terms = Terms(
        minor=None if wanted is None else minor_of(wanted),
        owner=owner,
        until=None if until is None else _day(until),
        accept=tuple(accept or ()),
    )
    done = open_window(store, terms, placement=placement, copies=not marks_only)
    warnings, following = _shortcomings(root, store, done, marks_only)
    if as_json:
        print(
            json.dumps(
                {
                    "root": root,
                    "ledger": ledger_of(store).address,
                    "window": window_facts(done.window),
                    "newest": done.choice.newest,
                    "bytes": sum(mark.bytes for mark in done.window.marks),
                    "copies": done.copies,
                    "warnings": warnings,
                    "next": following,
                }
            )
        )
    else:
        print("\n".join(_lines(root, done, warnings, following)))
    if not done.choice.marks:
        return ExitCode.FAIL
    return ExitCode.PASS if done.choice.tested and not done.notes else ExitCode.INCONCLUSIVE


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--until {text}: wanted a day such as 2026-12-24") from None


def _place(where: str, store: Store, name: str) -> str:
    """Return the path of a checkpoint: of its copy where the run has lost it."""
    copy = None if name in store.folders() else copy_of(store, name)
    return f"{where}/{name}" if copy is None else copy.address


def _shortcomings(
    root: str, store: Store, done: Protection, marks_only: bool
) -> tuple[list[str], list[str]]:
    """Return what a rollback could not rely on, and the commands that mend it."""
    minor, choice = done.window.minor, done.choice
    warnings, following = list(done.notes), []
    where = root.rstrip("/")
    if not choice.marks:
        warnings.append(f"PyTorch {minor} can read no checkpoint of this run")
        if choice.newest is not None:
            following.append(f"keepstep checkpoint downgrade {where}/{choice.newest} --for {minor}")
    elif not choice.tested:
        warnings.append(f"no checkpoint that PyTorch {minor} reads was test-loaded with it")
        following.append(test_load_command(_place(where, store, choice.marks[0].name), minor))
    elif choice.ahead:
        warnings.append(
            f"{count_text(len(choice.ahead), 'newer checkpoint')} can be read, and not one was "
            "test-loaded"
        )
        following.append(test_load_command(_place(where, store, choice.ahead[0]), minor))
    if following:
        following.append(f"keepstep checkpoint protect {root}")
    if done.idle:
        warnings.append(f"copies of what was protected before take space: {', '.join(done.idle)}")
        following.append(f"keepstep checkpoint prune {root} --copies")
    if marks_only or not isinstance(store, LocalStore):
        warnings.append(
            "there are no copies beside the run: a trainer removes what its own retention says, "
            "unless it asks keepstep.checkpoint.is_protected"
        )
    if Placement.LINK in done.copies.values():
        warnings.append(_HAZARD)
    return warnings, following


def _lines(root: str, done: Protection, warnings: list[str], following: list[str]) -> list[str]:
    window = done.window
    lines = [f"{root}: {window_line(window)}"]
    why = f"the newest that PyTorch {window.minor} reads"
    if done.choice.tested:
        why += " and that was test-loaded"
    for mark in window.marks:
        made = done.copies.get(mark.name)
        lines.append(f"  {mark_text(mark)}" + (f"; copied by {made}" if made else ""))
        lines.append(f"    {why}")
        why = "before it"
    if window.marks:
        total = size_text(sum(mark.bytes for mark in window.marks))
        lines.append(f"  costs {_now(done)} now, {total} once the trainer has removed its own")
    lines += [f"  accept {number}: {text}" for number, text in enumerate(window.accept, start=1)]
    lines += [f"  warning: {text}" for text in warnings]
    lines += [f"next: {command}" for command in following]
    return lines


def _now(done: Protection) -> str:
    """Return the space that the copies take that were made now."""
    copied = (m.bytes for m in done.window.marks if done.copies.get(m.name) is Placement.COPY)
    return size_text(sum(copied))
