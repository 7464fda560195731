"""What of a run is worth protecting: what an older PyTorch reads, and was seen to load."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from keepstep.checkpoint.copies import copied, copies_folder
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.record import identify, read_records
from keepstep.checkpoint.status import no_steps, steps_of
from keepstep.checkpoint.store import LocalStore, Store
from keepstep.checkpoint.testload import last_proof, refusal
from keepstep.checkpoint.wholeness import lacks
from keepstep.checkpoint.window import Mark, Tested

KEPT = 3  # the newest that is readable and test-loaded, and the two before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a run is worth protecting."""

    marks: tuple[Mark, ...]  # newest first; the first is test-loaded if any is
    newest: str | None  # the newest complete checkpoint, whoever reads it
    ahead: tuple[str, ...]  # readable, newer than the first mark, and not test-loaded

    @property
    def tested(self) -> bool:
        """Whether a checkpoint is both readable and test-loaded."""
        return bool(self.marks) and self.marks[0].tested is not None


def choose(root: Store, minor: str, earlier: Sequence[Mark] = ()) -> Choice:
    """Find the newest checkpoint that is readable and test-loaded, and the two readable before it.

    Where none is test-loaded: the newest readable one, and the two before it.

    Args:
        root: The run.
        minor: The PyTorch that must read it.
        earlier: Marks of the window: their test-loads count where this machine has no record, and
            copies of what the trainer has removed count as checkpoints of the run.

    Raises:
        NotACheckpointError: No folder has a step number.
    """
    candidates = _candidates(root, earlier)
    loaded = {mark.name for mark in earlier if mark.tested is not None}
    loaded |= {name for _, name, store in candidates if read_records(store)}
    newest: str | None = None
    found: list[tuple[int, str, Store, Tested | None]] = []
    lead: int | None = None
    for step, name, store in candidates:
        if lead is None and not loaded and len(found) >= KEPT:
            break  # no older one was ever test-loaded
        loaded.discard(name)
        try:
            reads = find_readers(store).readers[minor]
        except (CheckpointError, FileNotFoundError):  # the second: it was removed meanwhile
            continue
        if not reads or refusal(store, minor):
            newest = newest or name
            continue
        tested = None if lead is not None else _tested(store, name, minor, earlier)
        may_be_marked = lead is not None or len(found) < KEPT
        if tested is None and may_be_marked and lacks(store):
            continue  # of those further ahead only the number is told
        newest = newest or name
        if tested is not None:
            lead = len(found)
        found.append((step, name, store, tested))
        if lead is not None and len(found) == lead + KEPT:
            break
    chosen = found[lead or 0 :][:KEPT]
    return Choice(
        marks=tuple(_mark(*each, minor, earlier) for each in chosen),
        newest=newest,
        ahead=tuple(name for _, name, _, _ in found[: lead or 0]),
    )


def copy_of(root: Store, name: str) -> LocalStore | None:
    """Return the copy of a checkpoint that the trainer does not know of, if there is one."""
    if not isinstance(root, LocalStore) or name not in copied(root):
        return None
    return LocalStore(copies_folder(root) / name)


def steps_below(root: Store) -> list[tuple[int, str]]:
    """Return the steps of a run, newest first.

    Raises:
        NotACheckpointError: No folder has a step number.
    """
    found = sorted(steps_of(root.folders()), reverse=True)
    if not found:
        raise no_steps(root)
    return found


def same(store: Store, mark: Mark) -> bool:
    """Return whether a checkpoint is the one that was marked, wherever it lies."""
    try:
        return _identity(store) == mark.identity
    except CheckpointError:
        return False


def _candidates(root: Store, earlier: Sequence[Mark]) -> list[tuple[int, str, Store]]:
    found: list[tuple[int, str, Store]] = [
        (step, name, root.below(name)) for step, name in steps_of(root.folders())
    ]
    names = {name for _, name, _ in found}
    for mark in earlier:
        copy = copy_of(root, mark.name) if mark.name not in names else None
        if copy is not None:
            found.append((mark.step, mark.name, copy))
    if not found:
        steps_below(root)
    return sorted(found, key=lambda each: each[:2], reverse=True)


def _tested(store: Store, name: str, minor: str, earlier: Sequence[Mark]) -> Tested | None:
    """Return the test-load that counts: the last one known here, else what the ledger says."""
    proof = last_proof(store, minor)
    if proof is not None:
        if proof.stale or proof.record.verdict != "pass":
            return None
        record = proof.record
        return Tested(
            torch=record.torch, python=record.python, when=record.when, level=record.level
        )
    for mark in earlier:
        if mark.name == name and mark.tested is not None and same(store, mark):
            return mark.tested
    return None


def _mark(
    step: int,
    name: str,
    store: Store,
    tested: Tested | None,
    minor: str,
    earlier: Sequence[Mark],
) -> Mark:
    return Mark(
        name=name,
        step=step,
        identity=_identity(store),
        bytes=sum(file.size for file in store.files().values()),
        tested=tested or _tested(store, name, minor, earlier),
    )


def _identity(store: Store) -> str:
    """Return one digest of what makes a checkpoint itself, wherever a copy of it lies."""
    try:
        facts = asdict(identify(store))
    except NotACheckpointError:  # HuggingFace files have no metadata of their own
        facts = {"data": {name: list(file) for name, file in sorted(store.files().items())}}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
