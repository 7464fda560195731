"""From marks and a fault to what the fault cost. Pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.recovery.marks import COMMIT, ENTER, Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A signal that the benchmark sent."""

    kind: str  # kill, stop
    pid: int
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What followed a fault; seconds since the fault, None: not (yet) seen.

    Attributes:
        next_step: until any rank committed a step that it could not have without recovering.
        caught_up: until a step was committed that nobody had committed before the fault.
        full_strength: until the first step that held the gradients of all ranks.
        lost_steps: steps committed before the fault that had to be done again.
        short_steps: steps committed with the gradients of fewer ranks.
    """

    next_step: float | None
    caught_up: float | None
    full_strength: float | None
    lost_steps: int | None
    short_steps: int


def interrupted_step(marks: Sequence[Mark], fault: Fault) -> int:
    """Return the step that the lost process did not complete.

    Raises:
        ValueError: it has not committed any.
    """
    done = [mark.step for mark in marks if mark.pid == fault.pid and mark.event == COMMIT]
    if not done:
        raise ValueError(f"process {fault.pid} committed no step before its fault")
    return done[-1] + 1


def fell_into_exchange(marks: Sequence[Mark], fault: Fault) -> bool:
    """Return whether the lost process may have given its gradients already.

    Then the others can complete the step without noticing, and the time to it says nothing.
    """
    step = interrupted_step(marks, fault)
    return any(
        mark.pid == fault.pid and mark.event == ENTER and mark.step == step for mark in marks
    )


def measure(marks: Sequence[Mark], fault: Fault, world_size: int) -> Recovery:
    """Return what followed ``fault``; the lost process must not have begun to exchange its step."""
    after = _commits_after(marks, fault)
    done = _last_step_before(marks, fault)
    full = _full_steps(after, world_size)
    first = min(after, key=lambda mark: mark.time, default=None)
    return Recovery(
        next_step=_since(fault, after),
        caught_up=_since(fault, [mark for mark in after if mark.step > done]),
        full_strength=_since(fault, [mark for mark in after if mark.step in full]),
        lost_steps=None if first is None else max(0, done + 1 - first.step),
        short_steps=len({mark.step for mark in after if mark.members < world_size}),
    )


def _commits_after(marks: Sequence[Mark], fault: Fault) -> list[Mark]:
    """Return the commits that recovery made possible.

    A survivor may be a little late with a step that the lost process had completed: that one is no
    sign of recovery. From a process that was started since, everything is.
    """
    interrupted = interrupted_step(marks, fault)
    old = {mark.pid for mark in marks if mark.time <= fault.time and mark.event == COMMIT}
    return [
        mark
        for mark in marks
        if mark.event == COMMIT
        and mark.time > fault.time
        and mark.pid != fault.pid
        and (mark.pid not in old or mark.step >= interrupted)
    ]


def _last_step_before(marks: Sequence[Mark], fault: Fault) -> int:
    after = set(_commits_after(marks, fault))
    return max(mark.step for mark in marks if mark.event == COMMIT and mark not in after)


def _full_steps(after: Sequence[Mark], world_size: int) -> set[int]:
    ranks: dict[int, set[int]] = {}
    for mark in after:
        if mark.members == world_size:
            ranks.setdefault(mark.step, set()).add(mark.rank)
    return {step for step, found in ranks.items() if len(found) == world_size}


def _since(fault: Fault, marks: Sequence[Mark]) -> float | None:
    return min((mark.time - fault.time for mark in marks), default=None)


def step_seconds(marks: Sequence[Mark], *, since: float, until: float, skip: int = 0) -> float:
    """Return the median time between two commits of rank 0 in a stretch without faults.

    Args:
        marks: of the whole run.
        since, until: the stretch, as `time.monotonic`.
        skip: commits at its beginning to leave out: allocators and caches fill.

    Raises:
        ValueError: fewer than two commits are left.
    """
    times = [mark.time for mark in marks if mark.event == COMMIT and mark.rank == 0]
    times = sorted(time for time in times if since <= time <= until)[skip:]
    if len(times) < 2:
        raise ValueError(f"{len(times)} commits of rank 0 are too few to measure a step")
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def mean_step(marks: Sequence[Mark], *, since: float, until: float) -> float:
    """Return the mean time between two commits of rank 0 from ``since`` until ``until``.

    Raises:
        ValueError: fewer than two of its commits lie there.
    """
    times = [mark.time for mark in marks if mark.event == COMMIT and mark.rank == 0]
    times = [time for time in times if since <= time <= until]
    if len(times) < 2:
        raise ValueError(f"{len(times)} commits of rank 0 are too few to measure a step")
    return (max(times) - min(times)) / (len(times) - 1)


def digests(marks: Sequence[Mark], *, since: float = 0.0) -> list[str]:
    """Return the different digests of the model's state that were written after ``since``."""
    return sorted({mark.digest for mark in marks if mark.digest and mark.time > since})
