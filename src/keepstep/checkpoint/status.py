"""Which of a run's checkpoints an older PyTorch could go back to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keepstep.checkpoint.eras import era_of
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.readers import GLOBAL, find_readers, peek_at, verdicts
from keepstep.checkpoint.store import Store

# The step is the number that ends the name: step-100, iter_0000100, global_step100, checkpoint-100;
# Lightning's are epoch=1-step=100.ckpt, with an epoch that is not part of what they share.
_STEP = re.compile(r"(?:epoch=\d+-)?(?P<prefix>.*?)(?P<step>\d+)(?:\.ckpt)?")


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
    unreadable: tuple[str, ...]  # why others could not be judged: name and reason

    @property
    def behind(self) -> int | None:
        """Steps from the newest readable checkpoint to the newest of all."""
        if self.newest is None or self.newest_readable is None:
            return None
        return self.newest.step - self.newest_readable.step


def find_status(root: Store, minor: str) -> Status:
    """Look at the checkpoints below ``root``, newest first, until one is readable for ``minor``.

    Costs one listing of the folder and one or two range reads a checkpoint that is looked at.

    Raises:
        NotACheckpointError: There is no folder with a step number.
    """
    found = sorted(steps_of(root.folders()), reverse=True)
    if not found:
        raise NotACheckpointError(
            f"{root.address}: no folder here has a name that ends in a step number, like step-100"
        )
    newest: Step | None = None
    incomplete: list[str] = []
    unreadable: list[str] = []
    for looked_at, (step, name) in enumerate(found, start=1):
        try:
            seen = Step(name, step, _readable(root.below(name), minor))
        except NotACheckpointError:
            incomplete.append(name)
            continue
        except CheckpointError as error:
            unreadable.append(f"{name}: {error}")
            continue
        newest = newest or seen
        if seen.readable:
            return _status(newest, seen, len(found), looked_at, incomplete, unreadable)
    return _status(newest, None, len(found), len(found), incomplete, unreadable)


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


def _readable(store: Store, minor: str) -> bool | None:
    try:
        return verdicts(era_of(peek_at(store, GLOBAL)))[minor]
    except FileNotFoundError:
        # Rank-local metadata, safetensors, or a save that did not end: look at all the files.
        return find_readers(store).readers[minor]
