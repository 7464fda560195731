"""``keepstep checkpoint status``: which checkpoint of a run a rollback could use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
from keepstep.checkpoint.testload import Proof, last_proof, refusal
from keepstep.checkpoint.window import Tested, Window, window_of
from keepstep.cli.checkpoint_answer import RootArgument, answered, count_text
from keepstep.cli.checkpoint_window import (
    due_lines,
    standing_facts,
    standing_text,
    test_load_command,
    window_facts,
    window_line,
)
from keepstep.exit_codes import ExitCode

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What a rollback would load: of the run, or the copy beside it where that is newer."""

    step: Step
    path: str
    copied: bool
    behind: int | None  # steps to the newest of the run; None: that has no complete checkpoint
    proof: Proof | None
    noted: Tested | None  # what the ledger says of a test-load that this machine does not know


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
    if copy is not None and readable is not None and copy.step <= readable.step:
        copy = None  # the run itself is as good
    window, trouble = _window(store)
    standing = standings(store, window) if window is not None else ()
    way = _way(root, store, minor, found, copy, standing)
    if as_json:
        facts = {
            "behind": way and way.behind,
            "test_load": way and _proof_json(way),
            "newer_copy": copy and str(_copy_path(store, copy)),
            "window": window and window_facts(window),
            "protected": standing_facts(standing),
            "ledger_error": trouble,
        }
        print(json.dumps({"root": root, "for": minor, **asdict(found), **facts}))
    else:
        lines = _lines(root, minor, found, way)
        lines += _window_lines(root, window, standing, trouble)
        print("\n".join(lines + _next_lines(root, minor, found, way)))
    if way is not None:
        return ExitCode.PASS
    return ExitCode.FAIL if found.newest is not None else ExitCode.INCONCLUSIVE


def _find(store: Store, minor: str, copy: Step | None) -> Status:
    try:
        return find_status(store, minor, refusal)
    except NotACheckpointError as error:
        if copy is None:
            raise
        path = _copy_path(store, copy)
        raise NotACheckpointError(
            f"{error}. There is a copy that PyTorch {minor} can read: {path}"
        ) from None


def _way(
    root: str,
    store: Store,
    minor: str,
    found: Status,
    copy: Step | None,
    standing: tuple[Standing, ...],
) -> _Way | None:
    step = copy or found.newest_readable
    if step is None:
        return None
    place: Store = store.below(step.name) if copy is None else LocalStore(_copy_path(store, copy))
    proof = last_proof(place, minor)
    noted = None
    for each in standing:
        still = each.in_run if copy is None else each.copy
        if proof is None and each.mark.name == step.name and still is True:
            noted = each.mark.tested
    if noted is not None and noted.torch.split(".")[:2] != minor.split("."):
        noted = None  # the window is about another version
    return _Way(
        step=step,
        path=f"{root.rstrip('/')}/{step.name}" if copy is None else place.address,
        copied=copy is not None,
        behind=None if found.newest is None else max(0, found.newest.step - step.step),
        proof=proof,
        noted=noted,
    )


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


def _proof_json(way: _Way) -> dict[str, Any] | None:
    told = ("environment", "python", "when", "verdict", "level", "error")
    if way.proof is not None:
        record = asdict(way.proof.record)
        return {**{name: record[name] for name in told}, "stale": way.proof.stale}
    if way.noted is None:
        return None
    record = {"environment": {}, "verdict": "pass", "error": "", **asdict(way.noted)}
    return {**{name: record[name] for name in told}, "stale": ()}


def _proof_lines(minor: str, way: _Way) -> list[str]:
    command = test_load_command(way.path, minor)
    proof = way.proof
    if proof is None:
        if way.noted is None:
            return [f"  never test-loaded with PyTorch {minor}: {command}"]
        return [
            f"  last test-loaded with PyTorch {way.noted.torch} ({way.noted.python}) at "
            f"{way.noted.when}: pass (the ledger says so; it is unchanged since)"
        ]
    record = proof.record
    lines = [
        f"  last test-loaded with PyTorch {record.torch} ({record.python}) at {record.when}: "
        + record.verdict
    ]
    if proof.stale:
        lines += [f"  stale: {reason}" for reason in proof.stale]
        lines.append(f"  prove it again: {command}")
    return lines


def _lines(root: str, minor: str, found: Status, way: _Way | None) -> list[str]:
    readable, newest = found.newest_readable, found.newest
    if way is not None:
        first = f"{root}: PyTorch {minor} can go back to {way.step.name}"
        if way.behind is not None:
            first += f", {count_text(way.behind, 'step')} behind" if way.behind else ", the newest"
    elif newest is not None:
        first = f"{root}: PyTorch {minor} can read none of the checkpoints"
    else:
        first = f"{root}: there is no complete checkpoint"
    lines = [first]
    if way is not None and way.copied:
        lines.append(f"  of which there is the copy {way.path}; the run itself has ")
        lines[-1] += f"only {readable.name}" if readable is not None else "none that it can read"
    if newest is not None and (way is None or way.behind != 0):
        lines.append(f"  the newest is {newest.name}")
    lines.append(f"  {count_text(found.steps, 'folder')}, {found.looked_at} looked at")
    if way is not None:
        lines += _proof_lines(minor, way)
    if found.incomplete:
        lines.append(f"  without metadata: {_some(found.incomplete)}")
    return lines + [f"  passed over: {text}" for text in found.unreadable[:_SHOWN]]


def _next_lines(root: str, minor: str, found: Status, way: _Way | None) -> list[str]:
    if found.newest is None or (way is not None and way.behind == 0):
        return []
    where = f"{root.rstrip('/')}/{found.newest.name}"
    if any(text.startswith(f"{found.newest.name}: ") for text in found.unreadable):
        return [f"next: keepstep checkpoint verify {where}"]  # its form is not what is wrong
    return [f"next: keepstep checkpoint downgrade {where} --for {minor} --dry-run"]


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
