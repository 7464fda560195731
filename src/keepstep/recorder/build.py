"""From checked tables to dumps. Equal operations, groups and stacks of all ranks become one."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import repeat

from keepstep.recorder.model import (
    Backend,
    Direction,
    Dump,
    Entry,
    Finding,
    Frame,
    Group,
    GroupName,
    Operation,
    Severity,
    Status,
)
from keepstep.recorder.table import ABSENT, STATES, FrameRow, OperationRow, Table


class Builder:
    """Builds dumps and remembers the values that repeat in them. Not for several threads."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._operations: dict[OperationRow, Operation] = {}
        self._group_names: dict[tuple[str, str], GroupName] = {}
        self._groups: dict[tuple[str, str, tuple[int, ...] | None], Group] = {}
        self._frames: dict[FrameRow, Frame] = {}
        self._stacks: dict[tuple[FrameRow, ...], tuple[Frame, ...]] = {}

    def dump(self, table: Table) -> Dump:
        """Return the dump that ``table`` holds."""
        return Dump(
            version=self._text(table.version),
            library=self._text(table.library),
            backend=Backend(table.backend),
            groups=tuple(map(self._group, table.groups)),
            status={
                number: Status(*(None if count == ABSENT else count for count in counts))
                for number, *counts in table.status
            },
            entries=self._entries(table),
            extra=tuple(map(self._text, table.extra)),
        )

    def _entries(self, table: Table) -> tuple[Entry, ...]:
        numbers = {name: _integers(column) for name, column in table.integers.items()}
        columns: dict[str, Iterable[object]] = {
            "record": numbers["record"],
            "pg_id": numbers["pg_id"],
            "group": _chosen(map(self._group_name, table.group_names), numbers["group"]),
            "operation": _chosen(map(self._operation, table.operations), numbers["operation"]),
            "is_p2p": map(bool, table.flags["is_p2p"]),
            "sequence": numbers["sequence"],
            "op_id": numbers["op_id"],
            "state": _chosen(STATES, table.flags["state"]),
            "retired": map(bool, table.flags["retired"]),
            "created_ns": _optional(numbers["created_ns"]),
            "started_ns": _optional(numbers["started_ns"]),
            "completed_ns": _optional(numbers["completed_ns"]),
            "duration_ms": _durations(table.durations),
            "timeout_ms": _optional(numbers["timeout_ms"]),
            "thread": _chosen(map(self._text, table.threads), numbers["thread"]),
            "stack": _chosen(map(self._stack, table.stacks), numbers["stack"]),
        }
        # A column at a time: making each entry with its 16 arguments takes three times as long.
        entries = list(map(object.__new__, repeat(Entry, len(numbers["record"]))))
        for name, column in columns.items():
            deque(map(getattr(Entry, name).__set__, entries, column), maxlen=0)
        if numbers["record"] != sorted(numbers["record"]):
            entries.sort(key=lambda entry: entry.record)
        return tuple(entries)

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _group_name(self, key: tuple[str, str]) -> GroupName:
        if key not in self._group_names:
            self._group_names[key] = GroupName(*map(self._text, key))
        return self._group_names[key]

    def _group(self, key: tuple[str, str, tuple[int, ...] | None]) -> Group:
        if key not in self._groups:
            name, description, ranks = key
            self._groups[key] = Group(self._group_name((name, description)), ranks)
        return self._groups[key]

    def _operation(self, key: OperationRow) -> Operation:
        if key not in self._operations:
            name, in_sizes, in_dtypes, out_sizes, out_dtypes, direction, own, peer = key
            self._operations[key] = Operation(
                name=self._text(name),
                input_sizes=in_sizes,
                input_dtypes=tuple(map(self._text, in_dtypes)),
                output_sizes=out_sizes,
                output_dtypes=tuple(map(self._text, out_dtypes)),
                direction=None if direction is None else Direction(direction),
                own=own,
                peer=peer,
            )
        return self._operations[key]

    def _stack(self, key: tuple[FrameRow, ...]) -> tuple[Frame, ...]:
        if key not in self._stacks:
            self._stacks[key] = tuple(map(self._frame, key))
        return self._stacks[key]

    def _frame(self, key: FrameRow) -> Frame:
        if key not in self._frames:
            function, file, line = key
            self._frames[key] = Frame(self._text(function), self._text(file), line)
        return self._frames[key]


def findings(table: Table, path: str) -> tuple[Finding, ...]:
    """Return what was noted while the file was read."""
    return tuple(
        Finding(code, path, text, Severity(severity)) for code, text, severity in table.notes
    )


def _integers(column: bytes) -> list[int]:
    numbers = array("q")
    numbers.frombytes(column)
    return numbers.tolist()


def _chosen(values: Iterable[object], numbers: Iterable[int]) -> Iterable[object]:
    return map(tuple(values).__getitem__, numbers)


def _optional(numbers: list[int]) -> Iterable[int | None]:
    return [None if number == ABSENT else number for number in numbers]


def _durations(column: bytes) -> Iterable[float | None]:
    if not column:
        return repeat(None)
    durations = array("d")
    durations.frombytes(column)
    return [None if math.isnan(duration) else duration for duration in durations]
