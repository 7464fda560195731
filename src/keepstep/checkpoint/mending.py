"""What mends what ``verify`` has found: a command, or what a person has to do."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.findings import Finding, Verification, Weight
from keepstep.checkpoint.readers import GLOBAL, TEMPORARY, find_readers
from keepstep.checkpoint.status import steps_of
from keepstep.checkpoint.store import LocalStore, RemoteStore, Store

_TRIED = 20  # other checkpoints that are looked at until one is complete

_RESTORE = "bring the file back from a copy of this checkpoint, with its time (cp -p); else {other}"

MENDS = {
    "metadata": _RESTORE,
    "missing-file": _RESTORE,
    "short-file": _RESTORE,
    "long-file": _RESTORE,
    "slice": _RESTORE,
    "header": _RESTORE,
    "layout": _RESTORE,
    "index": _RESTORE,
    "missing-tensor": _RESTORE,
    "structure": "it was not saved or not copied as a whole: copy all of it again; else {other}",
    "unknown-tensor": "bring file and index from the same save; else {other}",
    "total-size": "bring file and index from the same save; else {other}",
    "stale-rank-metadata": "{away}",
    "stray-file": "when no save into this folder is running: {remove}",
    "unfinished-downgrade": "when no downgrade is running: {remove}",
    "newer-than-metadata": (
        "where the folder was copied, copy it again with its times (cp -p) and verify that; where "
        "it was not, {other}"
    ),
    "unfinished-save": "{unfinished}",
}


def mends(store: Store, found: Verification) -> list[str]:
    """Return what mends each of the findings, in their order. Equal texts mean one action."""
    if not found.findings:
        return []
    other = _other(store)
    complete = all(
        each.weight is Weight.NOTE or each.code == "unfinished-save" for each in found.findings
    )
    said = []
    for finding in found.findings:
        away, remove = _commands(store, finding.file)
        unfinished = _unfinished(store, found, finding, complete, other)
        said.append(
            MENDS[finding.code].format(other=other, away=away, remove=remove, unfinished=unfinished)
        )
    return said


def _commands(store: Store, file: str) -> tuple[str, str]:
    """Return what moves a file out of the readers' sight, and what removes it."""
    path = _path(store, file)
    if not isinstance(store, LocalStore):
        return f"move {path} to another place", f"remove {path}"
    quoted = shlex.quote(path)
    return f"mv {quoted} {shlex.quote(path + '.stale')}", f"rm {quoted}"


def _unfinished(
    store: Store, found: Verification, finding: Finding, complete: bool, other: str
) -> str:
    """Return what to do about a save that may have been cut off at its last step."""
    new, old = _path(store, TEMPORARY), _path(store, GLOBAL)
    if finding.weight is Weight.DAMAGE:  # there is no other metadata
        return found.recovery or (f"copy {new} to {old}" if complete else other)
    if isinstance(store, LocalStore):
        equal = f"cmp {shlex.quote(old)} {shlex.quote(new)} && rm {shlex.quote(new)}"
    else:
        equal = f"if {old} is equal to it, remove {new}"
    return (
        f"where a save is running, verify again after it; where none is: {equal}; where they "
        f"differ, the data may be of two saves: {other}"
    )


def _other(store: Store) -> str:
    """Return how to go on with another checkpoint of the run."""
    with suppress(OSError, CheckpointError):  # nobody may be allowed to look around
        root = _above(store)
        for _, name in sorted(steps_of(root.folders()), reverse=True)[:_TRIED]:
            each = root.below(name)
            with suppress(CheckpointError):
                if not _same(each, store) and find_readers(each).oldest:
                    command = f"keepstep checkpoint verify {shlex.quote(each.address)}"
                    return f"use another one of the run: {command}"
    return "use another checkpoint (there is no complete one beside this)"


def _above(store: Store) -> Store:
    """Return the folder or prefix that the checkpoint lies in."""
    if isinstance(store, LocalStore):
        named = store.path.name not in ("", "..")
        return LocalStore(store.path.parent if named else store.path.resolve().parent)
    assert isinstance(store, RemoteStore), "a store is one of the two"
    above = store.path.rpartition("/")[0]
    if not above:
        raise CheckpointError(f"{store.address}: a bucket lies in nothing")
    return RemoteStore(store.address.rpartition("/")[0], store.system, above)


def _same(one: Store, other: Store) -> bool:
    if isinstance(one, LocalStore) and isinstance(other, LocalStore):
        return one.path.samefile(other.path)
    return one.address == other.address


def _path(store: Store, file: str) -> str:
    if isinstance(store, LocalStore):
        return str(Path(store.address, file))
    return f"{store.address}/{file}"
