"""Where the waiting ends: the places at which somebody or something is at fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepstep.diagnosis.case import Case, record_of
from keepstep.diagnosis.mismatch import Mismatch, find_mismatch
from keepstep.diagnosis.stacks import Waiting, kind_of_wait
from keepstep.diagnosis.waits import Lack, Meeting, Node, Step, terminal_parts


@dataclass(slots=True)
class Ends:
    """Where the waiting ends, sorted by what is found there."""

    absent: list[int] = field(default_factory=list)  # ranks that wait for nothing
    device: dict[int, Step] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    loops: list[list[Node]] = field(default_factory=list)
    full: list[Step] = field(default_factory=list)  # every member came, none is known to be stuck


def find_ends(case: Case) -> Ends:
    """Follow the graph to its ends."""
    found = Ends()
    meetings = case.waits.meetings
    roots: set[Node] = set()
    differing: dict[Step, Mismatch] = {}
    for step, meeting in meetings.items():
        mismatch = find_mismatch(case.history, step, meeting)
        if mismatch is not None:
            differing[step] = mismatch
            roots.add(step)
            continue  # a device that does not finish what does not fit is not to blame
        for rank in _stuck_on_device(case, step, meeting):
            roots.add(rank)
            if not _is_elsewhere(case, rank):
                found.device.setdefault(rank, step)
    for component in terminal_parts(case.waits, roots):
        (first, *others) = component
        if others:
            found.loops.append(component)
        elif isinstance(first, Step):
            if first in differing:
                found.mismatches.append(differing[first])
            else:
                found.full.append(first)
        elif first not in found.device:
            found.absent.append(first)
    found.absent.sort()
    found.full.sort()
    found.mismatches.sort(key=lambda mismatch: mismatch.step)
    return found


def _stuck_on_device(case: Case, step: Step, meeting: Meeting) -> list[int]:
    """Ranks that never finished what peers finished with their help, and nothing later either."""
    if not meeting.finished or meeting.lacking(Lack.ABSENT, Lack.SILENT) or step.transfer:
        return []
    entries = [entry for entry in meeting.waiting.values() if entry is not None]
    if any("to_all" in e.operation.name or "toall" in e.operation.name for e in entries):
        return []  # ranks with less to exchange finish earlier
    stuck = []
    for rank, entry in sorted(meeting.waiting.items()):
        standing = case.frontier.standings[rank]
        known = standing.proven and not standing.lost and entry is not None
        if known and standing.newest_finished < record_of(entry) and _holds_others(case, rank):
            stuck.append(rank)
    return stuck


def _is_elsewhere(case: Case, rank: int) -> bool:
    """Whether the stack shows that the rank waits for no device: its recorder is late then.

    nccl2 marks an operation as completed when the training thread or the watchdog next looks.
    """
    seen = case.evidence.observations.get(rank)
    if seen is None or not seen.stack:
        return False
    return kind_of_wait(seen.stack) not in (Waiting.KERNEL, Waiting.COLLECTIVE)


def _holds_others(case: Case, rank: int) -> bool:
    """Whether the job really stands still for this rank: it is behind in what it began.

    While every rank has begun everything, a recorder that shows completions late looks the same.
    """
    for group in case.frontier.standings[rank].positions:
        positions = case.frontier.positions(group)
        mine = positions[rank].enqueued or 0
        if any((other.enqueued or 0) > mine for other in positions.values()):
            return True
    # That a dump is missing does not say that its rank is.
    return any(meeting.lacking(Lack.ABSENT) for meeting in case.waits.meetings.values())
