"""Where one rank stands: the first pending and the last finished operation of each of its groups.

Only these entries are made and kept, so that a diagnosis needs little time and memory whatever the
ring buffers hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub

from keepstep.recorder.entries import outline
from keepstep.recorder.meaning import MEANINGS, Counting, Retired
from keepstep.recorder.model import Backend, Direction, Dump, Entry, GroupName, Operation, State


@dataclass(slots=True)
class Position:
    """Where one rank stands in the collectives of one group."""

    oldest: Entry | None = None  # that the ring buffer still holds
    enqueued: int | None = None  # newest sequence that it entered; None: nobody knows
    completed: int | None = None  # newest sequence that it is known to have finished
    last: Entry | None = None
    done: Entry | None = None
    pending: Entry | None = None  # the oldest unfinished one
    pending_sequence: int | None = None  # of it; known without an entry where counters say it


@dataclass(slots=True)
class Transfers:
    """Point-to-point operations of one rank with one peer in one direction, in their order."""

    issued: int = 0
    finished: int = 0
    pending: Entry | None = None  # the oldest unfinished one
    number: int = 0  # of it, counted from the first retained one


PeerKey = tuple[int, Direction, int | None]  # group index, direction, peer (global rank)


@dataclass(slots=True)
class Standing:
    """All that the diagnosis keeps of one rank's dump."""

    rank: int
    backend: Backend
    whole: bool  # the ring buffer holds everything since the first operation
    proven: bool  # this recorder shows which operations finished
    positions: dict[int, Position] = field(default_factory=dict)  # by group index
    transfers: dict[PeerKey, Transfers] = field(default_factory=dict)
    newest_finished: int = -1  # highest record number that is known to be finished
    lost: bool = False  # the ring buffer has overwritten operations that are still pending


@dataclass(slots=True)
class Slot:
    """One group of one process: where it stands, and the places of its collectives in the dump."""

    oldest: int | None = None
    last: int = -1
    done: int | None = None
    pending: int | None = None
    position: Position = field(default_factory=Position)
    transfers: dict[tuple[Direction, int | None], Transfers] = field(default_factory=dict)

    def stretch(self, first: int, last: int, finished: bool) -> None:
        """Note where equal calls stand."""
        self.oldest = first if self.oldest is None else min(self.oldest, first)
        self.last = max(self.last, last)
        if finished:
            self.done = last if self.done is None else max(self.done, last)
        else:
            self.pending = first if self.pending is None else min(self.pending, first)

    def place(self, entries: Sequence[Entry], proven: bool) -> None:
        """Fill in the position from the noted places."""
        if self.oldest is None:
            return
        position = self.position
        position.oldest, position.last = entries[self.oldest], entries[self.last]
        position.enqueued = position.last.sequence
        if self.done is not None:
            position.done = entries[self.done]
        if self.pending is not None:
            position.pending = entries[self.pending]
            position.pending_sequence = position.pending.sequence
            position.completed = position.pending.sequence - 1
        elif position.done is not None and proven:
            position.completed = position.done.sequence


def find_standing(
    dump: Dump, usual: Backend | None
) -> tuple[Standing, dict[tuple[int, GroupName], Slot]]:
    """Return where a rank stands in each of its groups, by the process's number and name of it.

    ``usual`` is the backend of a dump that does not say its own. The rank and the indices of groups
    are left to who knows them.
    """
    backend = dump.backend
    if backend is Backend.UNKNOWN and usual is not None:
        backend = usual
    meaning = MEANINGS[backend]
    proven = meaning.completed_shown or meaning.retired is not Retired.NOTHING
    by_state = meaning.completed_shown
    seen = outline(dump.entries)
    slots: dict[tuple[int, GroupName], Slot] = {}
    transfers: dict[int, tuple[Slot, bool]] = {}  # by number of the call: and whether it finished
    last_finished = -1
    for number, (first, last) in _extents(seen.numbers).items():
        call = seen.calls[number]
        slot = slots.setdefault((call.pg_id, call.group), Slot())
        finished = (call.state is State.COMPLETED) if by_state else call.retired or not proven
        if finished:
            last_finished = max(last_finished, last)
        if not call.is_p2p:
            slot.stretch(first, last, finished)
        elif call.operation.direction is not None:
            transfers[number] = slot, finished
    if transfers:
        for at, number in enumerate(seen.numbers):
            if number in transfers:
                slot, finished = transfers[number]
                _count(slot, dump.entries, at, seen.calls[number].operation, finished)
    for slot in slots.values():
        slot.place(dump.entries, proven)
    newest_finished = _newest_before_a_gap(seen.records)
    if proven and last_finished >= 0:
        newest_finished = max(newest_finished, seen.records[last_finished])
    whole = not dump.entries or dump.entries[0].record == 0
    lost = not whole and _overwritten(dump, meaning.counting, slots)
    standing = Standing(-1, backend, whole, proven, newest_finished=newest_finished, lost=lost)
    return standing, slots


def _extents(numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each number the first and the last place that has it; sorted by the first."""
    places = range(len(numbers))
    last = dict(zip(numbers, places, strict=True))
    first = dict(zip(reversed(numbers), reversed(places), strict=True))
    return {number: (first[number], last[number]) for number in last}


def _newest_before_a_gap(records: Sequence[int]) -> int:
    """Return the record before the last gap, -1 without gaps or entries.

    A recorder that writes pending entries only leaves out those in between: they have finished.
    """
    if isinstance(records, range) or not records:
        return -1
    steps = list(map(sub, records[1:], records))
    gap = next((at for at in reversed(range(len(steps))) if steps[at] > 1), None)
    return -1 if gap is None else records[gap + 1] - 1


def _overwritten(
    dump: Dump, counting: Counting, slots: Mapping[tuple[int, GroupName], Slot]
) -> bool:
    """Whether counters know of pending operations that the ring buffer no longer holds."""
    lost = False
    for (number, _), slot in slots.items():
        position, status = slot.position, dump.status.get(number)
        oldest = position.pending
        if oldest is None or status is None or slot.transfers or slot.pending != slot.oldest:
            continue
        completed = status.completed
        if counting is Counting.COLLECTIVES:
            missing = oldest.sequence - 1 - (completed or 0)
        elif counting is Counting.OPERATIONS:
            missing = oldest.op_id - 1 - (-1 if completed is None else completed)
        else:
            continue
        if missing > 0:
            lost = True
            position.pending = None
            position.pending_sequence = oldest.sequence - missing
            position.completed = position.pending_sequence - 1
    return lost


def _count(
    slot: Slot, entries: Sequence[Entry], at: int, operation: Operation, finished: bool
) -> None:
    """Count one point-to-point operation."""
    assert operation.direction is not None
    key = (operation.direction, operation.peer)
    transfers = slot.transfers.get(key)
    if transfers is None:
        transfers = slot.transfers[key] = Transfers()
    transfers.issued += 1
    if finished:
        transfers.finished += 1
    elif transfers.pending is None:
        transfers.pending = entries[at]
        transfers.number = transfers.issued
