"""Who waits for whom: operations and ranks as one graph, and where it ends.

A rank points to the operations that it is in; an operation points to the ranks that it still needs.
Whoever points to nothing is where the waiting ends (a root); ranks that point on are victims. A
loop that nobody leaves is a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keepstep.diagnosis.frontier import Frontier
from keepstep.diagnosis.standing import Standing
from keepstep.recorder.model import Direction, Entry


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One operation of a group: a collective by its sequence, or a transfer between two ranks."""

    group: int
    sequence: int
    source: int = -1
    target: int = -1

    @property
    def transfer(self) -> bool:
        """Whether it is a point-to-point operation."""
        return self.source >= 0 or self.target >= 0


class Lack(StrEnum):
    """Why an operation still needs a rank."""

    ABSENT = "absent"  # its dump shows that it did not come
    SILENT = "silent"  # it left no dump
    BUSY = "busy"  # it came, and is in something earlier
    PERHAPS = "perhaps"  # it, or another one, or it came long ago: the recorder does not tell


@dataclass(slots=True)
class Meeting:
    """An operation that somebody is in."""

    waiting: dict[int, Entry | None] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    lacks: dict[int, Lack] = field(default_factory=dict)

    def lacking(self, *kinds: Lack) -> list[int]:
        """Return the ranks that it still needs for one of these reasons, sorted."""
        return sorted(rank for rank, lack in self.lacks.items() if lack in kinds)


@dataclass(slots=True)
class Waits:
    """The graph. ``of`` are the steps that a rank is in, oldest first."""

    meetings: dict[Step, Meeting]
    of: dict[int, list[Step]]


Node = int | Step


def find_waits(frontier: Frontier) -> Waits:
    """Draw the graph of a frontier."""
    meetings: dict[Step, Meeting] = {}
    for rank, standing in frontier.standings.items():
        for group, position in standing.positions.items():
            if position.pending_sequence is not None:
                step = Step(group, position.pending_sequence)
                meetings.setdefault(step, Meeting()).waiting[rank] = position.pending
        for (group, direction, peer), transfers in standing.transfers.items():
            if transfers.pending is not None:
                ends = (rank, peer) if direction is Direction.SEND else (peer, rank)
                source, target = (-1 if end is None else end for end in ends)
                step = Step(group, 0, source, target)
                meetings.setdefault(step, Meeting()).waiting[rank] = transfers.pending
    of: dict[int, list[Step]] = {}
    for step, meeting in meetings.items():
        for rank in meeting.waiting:
            of.setdefault(rank, []).append(step)
    waits = Waits(dict(sorted(meetings.items())), of)
    for steps in of.values():
        steps.sort()
    for rank, steps in of.items():
        steps.sort(key=lambda step: _record(waits.meetings[step].waiting[rank]))
    for step, meeting in waits.meetings.items():
        if step.transfer:
            _needs_of_transfer(frontier, step, meeting)
        else:
            _needs_of_collective(frontier, step, meeting)
    for step, meeting in waits.meetings.items():
        for rank in meeting.waiting:
            if rank not in meeting.lacks and _is_busy(frontier.standings[rank], waits, rank, step):
                meeting.lacks[rank] = Lack.BUSY
    for step, meeting in waits.meetings.items():
        if step.transfer and -1 in (step.source, step.target) and not meeting.lacks:
            _busy_partners(frontier, waits, step, meeting)
    return waits


def _busy_partners(frontier: Frontier, waits: Waits, step: Step, meeting: Meeting) -> None:
    """A transfer without a named peer waits for a partner that is held up itself."""
    (rank,) = meeting.waiting
    for other in frontier.roster.groups[step.group].members:
        if other == rank:
            continue
        for theirs in waits.of.get(other, ()):
            opposite = theirs.transfer and theirs.group == step.group
            opposite = opposite and (theirs.source == other) == (step.target == rank)
            if opposite and _is_busy(frontier.standings[other], waits, other, theirs):
                meeting.lacks[other] = Lack.PERHAPS


def _record(entry: Entry | None) -> int:
    return -1 if entry is None else entry.record


def _needs_of_collective(frontier: Frontier, step: Step, meeting: Meeting) -> None:
    for member in frontier.roster.groups[step.group].members:
        if member in meeting.waiting:
            continue
        standing = frontier.standings.get(member)
        if standing is None:
            meeting.lacks[member] = Lack.SILENT
            continue
        position = standing.positions.get(step.group)
        if position is None or position.enqueued is None or position.enqueued < step.sequence:
            meeting.lacks[member] = Lack.ABSENT
        elif position.pending_sequence is not None and position.pending_sequence < step.sequence:
            meeting.lacks[member] = Lack.BUSY
        else:
            meeting.finished.add(member)


def _needs_of_transfer(frontier: Frontier, step: Step, meeting: Meeting) -> None:
    (rank,) = meeting.waiting if len(meeting.waiting) == 1 else (None,)
    if rank is None:
        return
    members = frontier.roster.groups[step.group].members
    sends = rank == step.source
    peer = step.target if sends else step.source
    back = Direction.RECEIVE if sends else Direction.SEND
    mine = Direction.SEND if sends else Direction.RECEIVE
    for other in [peer] if peer >= 0 else [member for member in members if member != rank]:
        standing = frontier.standings.get(other)
        if standing is None:
            meeting.lacks[other] = Lack.SILENT
            continue
        theirs = standing.transfers.get((step.group, back, rank))
        anyone = standing.transfers.get((step.group, back, None))
        if anyone is not None and anyone.pending is not None:
            continue
        own = frontier.standings[rank].transfers[step.group, mine, peer if peer >= 0 else None]
        both_whole = standing.whole and frontier.standings[rank].whole and peer >= 0
        if theirs is not None and both_whole and theirs.issued >= own.number:
            if theirs.finished >= own.number:
                meeting.finished.add(other)
            continue
        if theirs is not None and theirs.pending is not None and not both_whole:
            continue
        meeting.lacks[other] = Lack.ABSENT if both_whole or peer < 0 else Lack.PERHAPS
    if peer < 0:
        if len(meeting.lacks) < len(members) - 1:
            meeting.lacks.clear()  # one that came is enough
        elif len(meeting.lacks) > 1:
            meeting.lacks = dict.fromkeys(meeting.lacks, Lack.PERHAPS)


def _is_busy(standing: Standing, waits: Waits, rank: int, step: Step) -> bool:
    """Whether a rank that came to ``step`` is held by something that it began before.

    What it began before cannot hold it if a later operation of the same group has finished.
    """
    record = _record(waits.meetings[step].waiting[rank])
    finished = -1
    if not step.transfer:
        done = standing.positions[step.group].done
        finished = _record(done)
    for other in waits.of[rank]:
        if other == step:
            return False
        if finished < _record(waits.meetings[other].waiting[rank]) < record:
            return True
    return False


def terminal_parts(waits: Waits, roots: set[Node]) -> list[list[Node]]:
    """Return where the waiting ends: components that point to nothing outside themselves.

    Args:
        waits: the graph.
        roots: nodes that are at fault in themselves: what they point to does not count.
    """

    def targets(node: Node) -> list[Node]:
        if node in roots:
            return []
        if isinstance(node, Step):
            return sorted(waits.meetings[node].lacks)
        return list(waits.of.get(node, []))

    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component: dict[Node, int] = {}
    stack: list[Node] = []
    components: list[list[Node]] = []
    for start in waits.meetings:
        if start in order:
            continue
        work: list[tuple[Node, list[Node], int]] = [(start, targets(start), 0)]
        while work:
            node, following, at = work.pop()
            if at == 0:
                order[node] = low[node] = len(order)
                stack.append(node)
            for position in range(at, len(following)):
                target = following[position]
                if target not in order:
                    work.append((node, following, position + 1))
                    work.append((target, targets(target), 0))
                    break
                if target not in component:
                    low[node] = min(low[node], order[target])
            else:
                if low[node] == order[node]:
                    members: list[Node] = []
                    while True:
                        member = stack.pop()
                        component[member] = len(components)
                        members.append(member)
                        if member == node:
                            break
                    components.append(members)
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return [
        members
        for number, members in enumerate(components)
        if all(component[t] == number for member in members for t in targets(member))
    ]
