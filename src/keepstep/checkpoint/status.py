"""Which of a run's checkpoints an older PyTorch could go back to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keepstep.checkpoint.eras import Era, era_of
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.peek import peek
from keepstep.checkpoint.readers import GLOBAL, find_readers, holds_safetensors, peek_at, verdicts
from keepstep.checkpoint.store import Store
from keepstep.checkpoint.wholeness import lacks

# The step is the number that ends the name: step-100, iter_0000100, global_step100, checkpoint-100;
# Lightning's are epoch=1-step=100.ckpt, with an epoch that is not part of what they share.
_STEP = re.compile(r"(?:epoch=\d+-)?(?P<prefix>.*?)(?P<step>\d+)(?:\.ckpt)?")

_HEAD = 1 << 12  # bytes; the first tensor begins within 400 in most files
_AT_ONCE = 256  # checkpoints that are asked for at the same time


@dataclass(frozen=True, slots=True)
class Step:
    """A checkpoint of a run."""

    name: str
    step: int
    readable: bool | None  # by the version asked for; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a rollback would find."""

    newest: Step | None  # of all complete checkpoints
    newest_readable: Step | None
    steps: int  # folders with a step number in their name
    looked_at: int  # checkpoints read until the answer was sure
    incomplete: tuple[str, ...]  # folders without metadata, newer than the answer
    unreadable: tuple[str, ...]  # why others were passed over: name and reason

    @property
    def behind(self) -> int | None:
        """Steps from the newest readable checkpoint to the newest of all."""
        if self.newest is None or self.newest_readable is None:
            return None
        return self.newest.step - self.newest_readable.step


def find_status(
    root: Store, minor: str, refused: Callable[[Store, str], str] | None = None
) -> Status:
    """Look at the checkpoints below ``root``, newest first, until one is readable for ``minor``.

    Costs one listing of the folder, and mostly one range read a checkpoint; more and more of them
    are asked for at once, so a store that is far away is not waited for each time. The metadata of
    the answer is read whole, and its data files must be there and long enough.

    Args:
        root: The run.
        minor: The PyTorch that must read it.
        refused: Says why a checkpoint with a readable form is not one that this version loads, as a
            test-load found; "" when nothing speaks against it.

    Raises:
        NotACheckpointError: There is no folder with a step number.
    """
    found = sorted(steps_of(root.folders()), reverse=True)
    if not found:
        raise no_steps(root)
    newest: Step | None = None
    incomplete: list[str] = []
    unreadable: list[str] = []
    for looked_at, ((step, name), head) in enumerate(_with_heads(root, found), start=1):
        try:
            seen = Step(name, step, _readable(root.below(name), head, minor))
        except NotACheckpointError:
            incomplete.append(name)
            continue
        except CheckpointError as error:
            unreadable.append(f"{name}: {error}")
            continue
        why = refused(root.below(name), minor) if refused and seen.readable else ""
        if why:
            unreadable.append(f"{name}: {why}")
            seen = Step(name, step, False)
        if seen.readable and (why := lacks(root.below(name))):
            unreadable.append(f"{name}: {why}")
            continue
        newest = newest or seen
        if seen.readable:
            return _status(newest, seen, len(found), looked_at, incomplete, unreadable)
    return _status(newest, None, len(found), len(found), incomplete, unreadable)


def no_steps(root: Store) -> NotACheckpointError:
    """Return the error about a folder without steps; the checkpoint itself is a common mistake."""
    files = root.files()
    if GLOBAL in files or holds_safetensors(files):
        says = "this is one checkpoint; wanted: the folder that holds those of a run"
    else:
        says = "no folder here has a name that ends in a step number, like step-100"
    return NotACheckpointError(f"{root.address}: {says}")


def _with_heads(
    root: Store, found: list[tuple[int, str]]
) -> Iterator[tuple[tuple[int, str], bytes | None]]:
    """Yield each step with the first bytes of its metadata; the newest are asked for first."""
    at, count = 0, 1
    while batch := found[at : at + count]:
        heads = root.heads([f"{name}/{GLOBAL}" for _, name in batch], _HEAD)
        yield from zip(batch, heads, strict=True)
        at, count = at + count, min(2 * count, _AT_ONCE)


def _status(
    newest: Step | None,
    readable: Step | None,
    steps: int,
    looked_at: int,
    incomplete: list[str],
    unreadable: list[str],
) -> Status:
    return Status(
        newest=newest,
        newest_readable=readable,
        steps=steps,
        looked_at=looked_at,
        incomplete=tuple(incomplete),
        unreadable=tuple(unreadable),
    )


def steps_of(names: list[str]) -> list[tuple[int, str]]:
    """Return the step numbers and names of folders; with several prefixes, the commonest one's."""
    matches = [match for name in names if (match := _STEP.fullmatch(name))]
    prefixes = [match["prefix"] for match in matches]
    if not prefixes:
        return []
    most = max(sorted(set(prefixes)), key=prefixes.count)
    return [(int(match["step"]), match.string) for match in matches if match["prefix"] == most]


def _readable(store: Store, head: bytes | None, minor: str) -> bool | None:
    if head and (era := _newest_form(head)) is not None:
        return verdicts(era)[minor]
    try:
        return verdicts(era_of(peek_at(store, GLOBAL)))[minor]
    except FileNotFoundError:
        # Rank-local metadata, safetensors, or a save that did not end: look at all the files.
        return find_readers(store).readers[minor]


def _newest_form(head: bytes) -> Era | None:
    """Return the era where the first bytes alone decide it: that of the newest form."""
    seen = peek(head, head, whole=False)
    return era_of(seen) if seen is not None and seen.properties_fields == 6 else None
