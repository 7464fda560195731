"""From progress records to faults: who stalls, who is slow. Pure functions.

A stalled job looks the same on every rank: all wait. The culprit is told from its victims by what
the agent can read without anybody's help, strongest evidence first:

1. the process is stopped (state T);
2. its side thread does not run either: it holds the interpreter lock or gets no processor time;
3. it entered fewer collectives than the others: they wait in one that it has not reached;
4. it is outside a collective while the others are inside.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from keepstep.runtime.progress import Phase
from keepstep.runtime.protocol import Progress

BUSY_FACTOR = 3.0  # a rank that burns processor time may just have a long step
UNKNOWN_FACTOR = 3.0  # everybody waits and nobody stands out: give it longer before we say so
CLOSE = 0.3  # of the patience: a rank without progress for so long is looked at closely
STOPPED_SHARE = 0.5  # of the patience, for a process that is stopped: it cannot go on by itself
FIRST_STEP_FACTOR = 10.0  # the first step of a process compiles, allocates, connects
_ACTIVE = (Phase.STEP, Phase.COLLECTIVE, Phase.COMMIT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """One rank that keeps the job from going on, and why we think so."""

    wid: int | None  # None: everybody waits and nobody can be named
    fault: str  # stop, gil, hang, unknown
    age: float
    evidence: str


def is_stalled(member: Progress, patience: float) -> bool:
    """Return whether a rank has made no progress for too long.

    One that a debugger holds (state t) is given the whole patience, as any other.
    """
    return member.age >= (patience * STOPPED_SHARE if member.state == "T" else patience)


def find_stalls(
    members: Sequence[Progress], patience: float, unproven: frozenset[int] = frozenset()
) -> list[Suspicion]:
    """Return the members that hold the job up, none if it is in step.

    Args:
        members: progress of every member of the generation, ages in seconds.
        patience: seconds without any progress after which a rank counts as stalled; half of them
            if its process is stopped.
        unproven: workers that have not committed a step yet; their first may take longer.
    """
    active = [member for member in members if member.phase in _ACTIVE]
    stalled = [member for member in active if is_stalled(member, patience)]
    certain = [_certain(member, patience) for member in stalled]
    named = [suspicion for suspicion in certain if suspicion is not None]
    if named or not stalled:
        return named
    late = _late(active, stalled)
    if late:
        ripe = [member for member in late if member.age >= _limit(member, patience, unproven)]
        return [_hang(member, active) for member in ripe]
    return _nobody(active, patience, unproven)


def _certain(member: Progress, patience: float) -> Suspicion | None:
    if member.state in ("T", "t"):
        how = "SIGSTOP, state T" if member.state == "T" else "by a debugger, state t"
        evidence = f"its process is stopped ({how})"
        return Suspicion(wid=member.wid, fault="stop", age=member.age, evidence=evidence)
    if member.side_age >= patience:
        evidence = (
            f"no thread of it has run Python for {member.side_age:.1f} s: "
            "something holds the interpreter lock"
        )
        return Suspicion(wid=member.wid, fault="gil", age=member.age, evidence=evidence)
    return None


def _late(active: Sequence[Progress], stalled: Sequence[Progress]) -> list[Progress]:
    """Return the stalled members that the others wait for."""
    furthest = max(member.sequence for member in active)
    fewest = min(member.sequence for member in active)
    if fewest < furthest:  # who is last may still be moving: then nobody is late yet
        return [member for member in stalled if member.sequence == fewest]
    outside = [member for member in stalled if member.phase != Phase.COLLECTIVE]
    return outside if len(outside) < len(active) else []


def _limit(member: Progress, patience: float, unproven: frozenset[int]) -> float:
    factor = BUSY_FACTOR if member.cpu else 1.0
    if member.wid in unproven:
        factor = max(factor, FIRST_STEP_FACTOR)
    return patience * factor


def _hang(member: Progress, active: Sequence[Progress]) -> Suspicion:
    ahead = sum(other.sequence > member.sequence for other in active)
    evidence = (
        f"it has entered {member.sequence} collectives of this generation, {ahead} of "
        f"{len(active) - 1} others are further and wait; its main thread "
        f"{'computes (or waits for a processor)' if member.cpu else 'sleeps'} outside a collective"
    )
    return Suspicion(wid=member.wid, fault="hang", age=member.age, evidence=evidence)


def _nobody(
    active: Sequence[Progress], patience: float, unproven: frozenset[int]
) -> list[Suspicion]:
    limits = [_limit(member, patience, unproven) * UNKNOWN_FACTOR for member in active]
    if any(member.age < limit for member, limit in zip(active, limits, strict=True)):
        return []
    age = min(member.age for member in active)
    evidence = f"all {len(active)} ranks wait at the same place since {age:.1f} s"
    return [Suspicion(wid=None, fault="unknown", age=age, evidence=evidence)]


WINDOW = 16  # samples before a rank can be called slow
SLOW_SCORE = 1.7
SLOW_SHARE = 0.9  # of the window in which it must have been slower than the others
SWAP_MARGIN = 2.0  # the expected gain must be this many times the cost


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A rank that makes the others wait."""

    wid: int
    score: float  # its busy time over the median busy time of the others
    gain_per_step: float  # seconds a step that the job would save without it


@dataclass(slots=True)
class StragglerWindow:
    """Busy times (step time outside collectives) of the last steps, by worker."""

    _busy: dict[int, list[float]] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)

    def add(self, progress: Progress) -> None:
        """Note the last committed step of one worker, once."""
        if progress.busy_seconds <= 0 or self._seen.get(progress.wid) == progress.committed:
            return
        self._seen[progress.wid] = progress.committed
        self._busy.setdefault(progress.wid, []).append(progress.busy_seconds)
        del self._busy[progress.wid][:-WINDOW]

    def clear(self) -> None:
        """Forget everything (a new generation starts from scratch)."""
        self._busy.clear()
        self._seen.clear()

    def find(self, members: Sequence[int]) -> Straggler | None:
        """Return the slowest member if it is a straggler beyond doubt."""
        full = {wid: busy for wid in members if len(busy := self._busy.get(wid, [])) >= WINDOW}
        if len(full) < len(members) or len(members) < 2:
            return None
        medians = {wid: statistics.median(busy) for wid, busy in full.items()}
        slowest = max(medians, key=lambda wid: medians[wid])
        others = [value for wid, value in medians.items() if wid != slowest]
        usual = statistics.median(others)
        score = medians[slowest] / max(usual, 1e-9)
        slower = sum(value > usual for value in full[slowest]) / WINDOW
        if score < SLOW_SCORE or slower < SLOW_SHARE:
            return None
        gain = medians[slowest] - max(others)
        return Straggler(wid=slowest, score=score, gain_per_step=gain)


def worth_swapping(straggler: Straggler, steps_left: int, cost: float) -> bool:
    """Return whether replacing the straggler saves clearly more than it costs (seconds)."""
    return straggler.gain_per_step * steps_left > SWAP_MARGIN * cost
