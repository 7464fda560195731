"""The entries of one dump as columns; an ``Entry`` is made where somebody asks for it.

A diagnosis looks at a few entries of each rank. Making all of a thousand ranks would take most of
its time and memory.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import overload

from keepstep.recorder.model import Entry, Frame, GroupName, Operation, State
from keepstep.recorder.table import ABSENT, Column, unpack, value


@dataclass(frozen=True, slots=True)
class Call:
    """All that many entries of a rank have in common. Not compared by value: it is shared."""

    operation: Operation
    pg_id: int
    group: GroupName
    is_p2p: bool
    state: State
    retired: bool
    timeout_ms: int | None
    thread: str


@dataclass(frozen=True, slots=True)
class Outline:
    """What a first look at entries needs. ``numbers`` index ``calls``; both have an entry each."""

    calls: Sequence[Call]
    numbers: Sequence[int]
    records: Sequence[int]


class Entries(Sequence[Entry]):
    """Reads like a tuple of entries, in the order of their record numbers."""

    __slots__ = ("_calls", "_columns", "_durations", "_length", "_made", "_stacks")

    def __init__(
        self,
        length: int,
        calls: tuple[Call, ...],
        stacks: tuple[tuple[Frame, ...], ...],
        columns: Mapping[str, Column],
        durations: bytes,
    ) -> None:
        self._length = length
        self._calls = calls
        self._stacks = stacks
        self._columns = columns
        self._durations = durations
        self._made: tuple[Entry, ...] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, at: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(at, slice) or self._made is not None:
            return self._all()[at]
        return self._one(range(self._length)[at])

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (tuple, Entries)):
            return self._all() == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def outline(self) -> Outline:
        """Return what a first look needs, without making entries."""
        return Outline(self._calls, self._column("call"), self._column("record"))

    def times_ns(self, event: str) -> Iterator[int]:
        """Return the known times of an event: "created", "started" or "completed"."""
        return (time for time in self._column(f"{event}_ns") if time != ABSENT)

    def _column(self, name: str) -> Sequence[int]:
        return unpack(self._columns[name], self._length)

    def _one(self, at: int) -> Entry:
        numbers = {name: value(column, at) for name, column in self._columns.items()}
        call = self._calls[numbers["call"]]
        duration = _durations(self._durations[8 * at : 8 * at + 8], 1)[0]
        return Entry(
            record=numbers["record"],
            pg_id=call.pg_id,
            group=call.group,
            operation=call.operation,
            is_p2p=call.is_p2p,
            sequence=numbers["sequence"],
            op_id=numbers["op_id"],
            state=call.state,
            retired=call.retired,
            created_ns=_known(numbers["created_ns"]),
            started_ns=_known(numbers["started_ns"]),
            completed_ns=_known(numbers["completed_ns"]),
            duration_ms=duration,
            timeout_ms=call.timeout_ms,
            thread=call.thread,
            stack=self._stacks[numbers["stack"]],
        )

    def _all(self) -> tuple[Entry, ...]:
        if self._made is not None:
            return self._made
        calls = list(map(self._calls.__getitem__, self._column("call")))
        columns: dict[str, Iterable[object]] = {
            name: map(getattr(Call, name).__get__, calls)
            for name in (
                *("pg_id", "group", "operation", "is_p2p", "state", "retired", "timeout_ms"),
                "thread",
            )
        }
        for name in ("record", "sequence", "op_id"):
            columns[name] = self._column(name)
        for name in ("created_ns", "started_ns", "completed_ns"):
            columns[name] = map(_known, self._column(name))
        columns["duration_ms"] = _durations(self._durations, self._length)
        columns["stack"] = map(self._stacks.__getitem__, self._column("stack"))
        # A column at a time: making each entry with its 16 arguments takes three times as long.
        entries = list(map(object.__new__, repeat(Entry, self._length)))
        for name, column in columns.items():
            deque(map(getattr(Entry, name).__set__, entries, column), maxlen=0)
        self._made = tuple(entries)
        return self._made


def outline(entries: Sequence[Entry]) -> Outline:
    """Return what a first look at entries needs."""
    if isinstance(entries, Entries):
        return entries.outline()
    known: dict[tuple[object, ...], int] = {}
    calls: list[Call] = []
    numbers = []
    for e in entries:
        # By identity, which lasts as long as the entries do: equal values only cost a call more.
        key = (e.pg_id, id(e.group), id(e.operation), e.is_p2p, e.state, e.retired)
        if key not in known:
            known[key] = len(calls)
            calls.append(
                Call(
                    operation=e.operation,
                    pg_id=e.pg_id,
                    group=e.group,
                    is_p2p=e.is_p2p,
                    state=e.state,
                    retired=e.retired,
                    timeout_ms=e.timeout_ms,
                    thread=e.thread,
                )
            )
        numbers.append(known[key])
    return Outline(calls, numbers, [entry.record for entry in entries])


def called_ns(entries: Sequence[Entry]) -> Iterator[int]:
    """Return when the operations were called, those of which it is known."""
    if isinstance(entries, Entries):
        return entries.times_ns("created")
    return (entry.created_ns for entry in entries if entry.created_ns is not None)


def newest_ns(entries: Sequence[Entry]) -> int:
    """Return when the newest operation was called; 0 where nothing says."""
    return max(called_ns(entries), default=0)


def _known(number: int) -> int | None:
    return None if number == ABSENT else number


def _durations(column: bytes, length: int) -> Sequence[float | None]:
    if not column:
        return [None] * length
    durations = array("d")
    durations.frombytes(column)
    return [None if math.isnan(duration) else duration for duration in durations]
