"""What a page shows of each group: a row for ranks that look alike, a column for each operation.

Only the operations around the frontier are kept, so that the size of a page follows from the number
of ranks and groups, not from what their ring buffers hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from keepstep.diagnosis.frontier import Frontier
from keepstep.diagnosis.groups import NO_DESCRIPTION, ProcessGroup
from keepstep.diagnosis.standing import Position, Standing
from keepstep.diagnosis.verdict import Verdict
from keepstep.diagnosis.waits import Lack, Step, Waits
from keepstep.recorder.meaning import Progress, progress
from keepstep.recorder.model import Entry, Frame, Operation

BEFORE = 5  # operations before a frontier that are shown
AFTER = 3  # operations after it
FRONTIERS = 3  # different places at which members of one group wait
NO_CALL = -1  # where no entry is left
TRANSFERS = 10  # newest sends and receives of a rank in a group

_T = TypeVar("_T")


class Mark(StrEnum):
    """How far a rank came with one operation; one letter, for a page keeps many."""

    DONE = "d"
    WAITS = "w"
    QUEUED = "q"  # entered, and behind something that the rank waits in
    RUNNING = "r"
    GIVEN_UP = "g"
    ENDED = "e"  # finished or given up: this recorder shows both alike
    UNKNOWN = "u"  # this recorder never says
    ABSENT = "n"  # not entered
    NOTHING = "b"  # no operation, or none that is known


class Importance(StrEnum):
    """Why a group is shown where it is; listed from the first to the last on a page."""

    BLAMED = "blamed"  # a rank to blame did not come to it, or came and is held by nothing else
    TOUCHED = "touched"  # a rank to blame is behind in it because of something else
    PENDING = "pending"  # somebody waits in it
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as it was called; equal for all ranks that did the same from the same line."""

    operation: Operation
    stack: tuple[Frame, ...]
    peer: str = ""  # "to rank 3", "from any rank"
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One operation of a group: a sequence, or 0, -1, ... from the newest one of each rank."""

    number: int
    call: int = NO_CALL  # of most ranks


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks with equal cells. ``since`` tells, by rank, for how long each waits (seconds)."""

    ranks: tuple[int, ...]
    marks: str = ""  # a ``Mark`` for each column
    calls: tuple[int, ...] = ()  # for each column, an index into ``Picture.calls``
    blamed: bool = False
    empty: str = ""  # why there is nothing to show
    since: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One group, or the sends and receives in it."""

    label: str
    kind: str  # the description that groups of one sort share
    members: tuple[int, ...]
    transfers: bool
    importance: Importance
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All groups, the most important ones first, and the calls that their rows refer to."""

    lanes: tuple[Lane, ...] = ()
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class _Calls:
    """Gives every call its number. Looked up by identity first: values are shared objects."""

    numbers: dict[Call, int] = field(default_factory=dict)
    _known: dict[tuple[int, int, str, int | None], int] = field(default_factory=dict)

    def number(self, entry: Entry, peer: str = "") -> int:
        key = (id(entry.operation), id(entry.stack), peer, entry.timeout_ms)
        if key not in self._known:
            call = Call(entry.operation, entry.stack, peer, entry.timeout_ms)
            self._known[key] = self.numbers.setdefault(call, len(self.numbers))
        return self._known[key]


@dataclass(slots=True)
class _Kept:
    """The entries of one rank in one group that are shown."""

    collectives: dict[int, Entry] = field(default_factory=dict)  # by sequence
    transfers: list[Entry] = field(default_factory=list)  # the newest ones, oldest first


def draw(
    frontier: Frontier,
    waits: Waits,
    verdict: Verdict,
    why_missing: Mapping[int, str],
    last_event_ns: Mapping[int, int],
) -> Picture:
    """Draw the lanes of all groups.

    Args:
        frontier: where all ranks stand.
        waits: who waits for whom.
        verdict: its ranks are marked, and the groups of its headline come first.
        why_missing: by rank, why it left no dump.
        last_event_ns: by rank, the time of the last event of its host.
    """
    groups = frontier.roster.groups
    windows = [_window(frontier.positions(index)) for index in range(len(groups))]
    kept = _collect(frontier, windows)
    blamed = frozenset(verdict.ranks)
    drawing = _Drawing(frontier, waits, blamed, why_missing, last_event_ns, kept)
    drawn = []
    for index in range(len(groups)):
        if windows[index]:
            drawn.append(drawing.collectives(index, windows[index]))
        if any((rank, index) in drawing.sending for rank in groups[index].members):
            drawn.append(drawing.transfers(index))
    order = list(Importance)
    drawn.sort(
        key=lambda lane: (
            order.index(lane.importance),
            not any(f"group {lane.label}{end}" in f"{verdict.headline} " for end in " ,;)"),
            lane.kind,
            lane.members,
        )
    )
    return Picture(tuple(drawn), tuple(drawing.calls.numbers))


def _window(positions: Mapping[int, Position]) -> list[int]:
    """Return the sequences of a group that are shown."""
    entered = [p.enqueued for p in positions.values() if p.enqueued is not None]
    if not entered:
        return []
    highest, pending = max(entered), set()
    for position in positions.values():
        if position.pending_sequence is not None:
            pending.add(position.pending_sequence)
        elif position.enqueued is not None and position.enqueued < highest:
            pending.add(position.enqueued + 1)
    if not pending:
        return list(range(max(1, highest - BEFORE), highest + 1))
    fronts = sorted(pending)
    shown = set(range(fronts[0] - BEFORE, fronts[0] + AFTER + 1))
    for front in [*fronts[1:FRONTIERS], fronts[-1]]:
        shown.update(range(front - 1, front + 2))
    shown.update((highest - 1, highest))
    return sorted(number for number in shown if 1 <= number <= highest)


def _collect(frontier: Frontier, windows: Sequence[list[int]]) -> dict[tuple[int, int], _Kept]:
    """Go over all entries once; keep, by rank and group, those that are shown."""
    wanted = [frozenset(window) for window in windows]
    kept: dict[tuple[int, int], _Kept] = {}
    for rank, dump in frontier.dumps.items():
        slots = frontier.roster.of[rank]
        index: dict[tuple[int, int], int] = {}
        for entry in dump.entries:
            key = (entry.pg_id, id(entry.group))
            group = index.get(key)
            if group is None:
                group = index[key] = slots[entry.pg_id, entry.group]
            if not entry.is_p2p:
                if entry.sequence in wanted[group]:
                    mine = kept.setdefault((rank, group), _Kept()).collectives
                    mine.setdefault(entry.sequence, entry)  # the first of those coalesced
            elif entry.operation.direction is not None:
                sent = kept.setdefault((rank, group), _Kept()).transfers
                sent.append(entry)
                if len(sent) > 4 * TRANSFERS:
                    del sent[:-TRANSFERS]
    return kept


@dataclass(slots=True)
class _Drawing:
    """Everything that the rows of all groups are made from."""

    frontier: Frontier
    waits: Waits
    blamed: frozenset[int]
    why_missing: Mapping[int, str]
    last_event_ns: Mapping[int, int]
    kept: dict[tuple[int, int], _Kept]
    sending: frozenset[tuple[int, int]] = field(init=False)
    _group_steps: dict[int, list[Step]] = field(init=False)
    calls: _Calls = field(default_factory=_Calls)

    def __post_init__(self) -> None:
        self.sending = frozenset(key for key, entries in self.kept.items() if entries.transfers)
        self._group_steps = _by(self.waits.meetings, lambda step: step.group)

    def collectives(self, index: int, window: list[int]) -> Lane:
        group = self.frontier.roster.groups[index]
        positions = self.frontier.positions(index)
        drawn: list[tuple[int, str, tuple[int, ...]]] = []
        empty: list[tuple[int, str]] = []
        for rank in group.members:
            position = positions.get(rank)
            if rank not in self.frontier.standings:
                empty.append((rank, self._no_dump(rank)))
            elif position is None or position.enqueued is None:
                calls: tuple[int, ...] = (NO_CALL,) * len(window)
                drawn.append((rank, Mark.ABSENT * len(window), calls))
            else:
                drawn.append(self._cells(rank, index, position, window))
        columns = [
            Column(number, _most_usual(calls[at] for _, _, calls in drawn))
            for at, number in enumerate(window)
        ]
        kept = _worth_showing(columns, positions.values())
        drawn = [
            (rank, "".join(marks[at] for at in kept), tuple(calls[at] for at in kept))
            for rank, marks, calls in drawn
        ]
        columns = [columns[at] for at in kept]
        rows = self._rows(index, drawn, empty, {r: p.pending for r, p in positions.items()})
        return self._lane(index, tuple(columns), rows, transfers=False)

    def _cells(
        self, rank: int, index: int, position: Position, window: list[int]
    ) -> tuple[int, str, tuple[int, ...]]:
        own = self.kept.get((rank, index), _Kept()).collectives
        standing = self.frontier.standings[rank]
        step = Step(index, position.pending_sequence or 0)
        meeting = self.waits.meetings.get(step)
        behind = meeting is not None and meeting.lacks.get(rank) is Lack.BUSY
        marks = [_mark(position, standing, number, own.get(number), behind) for number in window]
        calls = tuple(self.calls.number(own[n]) if n in own else NO_CALL for n in window)
        return rank, "".join(marks), calls

    def transfers(self, index: int) -> Lane:
        group = self.frontier.roster.groups[index]
        drawn, empty, pending = [], [], {}
        for rank in group.members:
            if rank not in self.frontier.standings:
                empty.append((rank, self._no_dump(rank)))
                continue
            sent = self.kept.get((rank, index), _Kept()).transfers[-TRANSFERS:]
            standing = self.frontier.standings[rank]
            marks = [_transfer_mark(entry, standing) for entry in sent]
            if Mark.WAITS in marks:
                pending[rank] = sent[marks.index(Mark.WAITS)]
            padding = TRANSFERS - len(sent)
            calls = [self.calls.number(e, _peer(e.operation, group, rank)) for e in sent]
            drawn.append(
                (rank, Mark.NOTHING * padding + "".join(marks), (*[NO_CALL] * padding, *calls))
            )
        columns = tuple(Column(at - TRANSFERS + 1) for at in range(TRANSFERS))
        return self._lane(index, columns, self._rows(index, drawn, empty, pending), transfers=True)

    def _lane(
        self, index: int, columns: tuple[Column, ...], rows: tuple[Row, ...], *, transfers: bool
    ) -> Lane:
        group = self.frontier.roster.groups[index]
        plain = group.description in NO_DESCRIPTION
        return Lane(
            label=group.label,
            kind="without a description" if plain else group.description,
            members=group.members,
            transfers=transfers,
            importance=self._importance(index, transfers),
            columns=columns,
            rows=rows,
        )

    def _importance(self, index: int, transfers: bool) -> Importance:
        found = Importance.IDLE
        for step in self._group_steps.get(index, ()):
            if step.transfer is not transfers:
                continue
            meeting = self.waits.meetings[step]
            named = [lack for rank, lack in meeting.lacks.items() if rank in self.blamed]
            inside = self.blamed & set(meeting.waiting)
            if inside - set(meeting.lacks) or any(lack is not Lack.BUSY for lack in named):
                return Importance.BLAMED
            if inside or named:
                found = Importance.TOUCHED
            elif found is Importance.IDLE:
                found = Importance.PENDING
        return found

    def _rows(
        self,
        index: int,
        drawn: Iterable[tuple[int, str, tuple[int, ...]]],
        empty: Iterable[tuple[int, str]],
        pending: Mapping[int, Entry | None],
    ) -> tuple[Row, ...]:
        looks = {rank: (marks, calls, rank in self.blamed) for rank, marks, calls in drawn}
        rows = []
        for (marks, calls, blamed), ranks in _by(looks, looks.__getitem__).items():
            since = tuple(self._since(rank, pending.get(rank)) for rank in ranks)
            rows.append(Row(tuple(ranks), marks, calls, blamed, "", since))
        reasons = {rank: (reason, rank in self.blamed) for rank, reason in empty}
        for (reason, blamed), ranks in _by(reasons, reasons.__getitem__).items():
            rows.append(Row(tuple(ranks), blamed=blamed, empty=reason))
        return tuple(sorted(rows, key=lambda row: (not row.blamed, not row.empty, row.ranks)))

    def _since(self, rank: int, entry: Entry | None) -> float | None:
        """Return how long before the last event of its host a rank began to wait, in seconds."""
        last = self.last_event_ns.get(rank)
        if entry is None or entry.created_ns is None or last is None:
            return None
        return round((last - entry.created_ns) / 1e9, 3)

    def _no_dump(self, rank: int) -> str:
        return self.why_missing.get(rank) or "no dump, and nothing says why"


def _worth_showing(columns: Sequence[Column], positions: Iterable[Position]) -> list[int]:
    """Return the columns of which an entry is left, and those beside a frontier."""
    fronts = {p.pending_sequence for p in positions if p.pending_sequence is not None}
    beside = fronts | {front - 1 for front in fronts} | {columns[-1].number}
    return [at for at, c in enumerate(columns) if c.call != NO_CALL or c.number in beside]


def _mark(
    position: Position, standing: Standing, number: int, entry: Entry | None, behind: bool
) -> Mark:
    if position.enqueued is None or number > position.enqueued:
        return Mark.ABSENT
    pending = position.pending_sequence
    if number == pending:
        running = entry is not None and progress(entry, standing.backend) is Progress.RUNNING
        if behind:
            return Mark.QUEUED
        return Mark.RUNNING if running else Mark.WAITS
    if pending is not None and number < pending:
        return Mark.DONE
    if entry is None:
        done = position.completed is not None and number <= position.completed
        return Mark.DONE if done else Mark.NOTHING
    found = _MARKS[progress(entry, standing.backend)]
    return Mark.QUEUED if found is Mark.WAITS else found


def _transfer_mark(entry: Entry, standing: Standing) -> Mark:
    return _MARKS[progress(entry, standing.backend)]


_MARKS = {
    Progress.PENDING: Mark.WAITS,
    Progress.RUNNING: Mark.RUNNING,
    Progress.FINISHED: Mark.DONE,
    Progress.GIVEN_UP: Mark.GIVEN_UP,
    Progress.ENDED: Mark.ENDED,
    Progress.UNKNOWN: Mark.UNKNOWN,
}


def _peer(operation: Operation, group: ProcessGroup, rank: int) -> str:
    word = "to" if operation.direction == "send" else "from"
    others = [member for member in group.members if member != rank]
    if operation.peer is not None and operation.peer < len(group.members):
        return f"{word} rank {group.members[operation.peer]}"
    return f"{word} rank {others[0]}" if len(others) == 1 else f"{word} any rank"


def _most_usual(calls: Iterable[int]) -> int:
    counted = Counter(call for call in calls if call != NO_CALL)
    return max(counted, key=lambda call: (counted[call], -call), default=NO_CALL)


_Key = TypeVar("_Key", bound=Hashable)


def _by(items: Iterable[_T], key: Callable[[_T], _Key]) -> dict[_Key, list[_T]]:
    found: dict[_Key, list[_T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found
