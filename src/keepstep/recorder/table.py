"""The form in which a dump travels from the process that read it: columns and distinct values.

Only what ``marshal`` carries, and only values that ``shape`` has checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from keepstep.recorder.kinds import State

STATES = (State.SCHEDULED, State.STARTED, State.COMPLETED)
ABSENT = -1  # of a time, a timeout or a counter

# name, input sizes and types, output sizes and types, direction, own rank, peer
OperationRow = tuple[
    str,
    tuple[tuple[int, ...], ...],
    tuple[str, ...],
    tuple[tuple[int, ...], ...],
    tuple[str, ...],
    str | None,
    int | None,
    int | None,
]
FrameRow = tuple[str, str, int]
GroupRow = tuple[
    str, str, str | None
]  # name, description, ranks as "0,1,2": many files repeat them
# what many entries have in common: operation, group number, group name and description, whether it
# is point-to-point, index into STATES, retired, timeout (ms), thread
CallRow = tuple[OperationRow, int, tuple[str, str], bool, int, bool, int, str]

Column = tuple[int, str, bytes]
"""Integers, one an entry: what is added to each, and the rest.

The rest is "" (it is 0), "range" (0, 1, 2, ...) or the typecode of an ``array`` and its bytes.
"""


class Table(NamedTuple):
    """One dump; entries are in the order of their record numbers."""

    version: str
    library: str
    backend: str
    groups: list[GroupRow]
    status: list[tuple[int, int, int, int]]  # group number, enqueued, started, completed
    extra: list[str]
    notes: list[tuple[str, str, str]]  # code, text, severity
    length: int  # entries
    calls: list[CallRow]
    stacks: list[tuple[FrameRow, ...]]
    columns: dict[str, Column]  # by name of the field; "call" and "stack" index the lists
    durations: bytes  # array("d"), NaN where absent; empty where no entry has one


def pack(values: array[int]) -> Column:
    """Return the shortest column that holds ``values``: numbers of one dump lie close together."""
    if not values:
        return 0, "", b""
    if values.typecode != "q":
        return 0, values.typecode, values.tobytes()
    if abs(values[-1] - values[0]) > _NARROW[-1][1]:  # so do times, nearly always
        return 0, "q", values.tobytes()
    first, length = values[0], len(values)
    if values.count(first) == length:
        return first, "", b""
    if values[-1] - first == length - 1 and values == array("q", range(first, values[-1] + 1)):
        return first, "range", b""
    low, high = min(values), max(values)
    code = narrow(high - low)
    if code == "q":
        return 0, code, values.tobytes()
    return low, code, array(code, map((-low).__add__, values)).tobytes()


def narrow(most: int) -> str:
    """Return the typecode of the shortest array that holds numbers from 0 to ``most``."""
    return next((code for code, limit in _NARROW if most <= limit), "q")


_NARROW = (("B", (1 << 8) - 1), ("H", (1 << 16) - 1), ("I", (1 << 32) - 1))


def unpack(column: Column, length: int) -> Sequence[int]:
    """Return the integers of a column."""
    base, code, rest = column
    if not code:
        return list(repeat(base, length))
    if code == "range":
        return range(base, base + length)
    found = array(code, rest).tolist()
    return list(map(base.__add__, found)) if base else found


def value(column: Column, at: int) -> int:
    """Return the integer of one entry."""
    base, code, rest = column
    if not code:
        return base
    if code == "range":
        return base + at
    size = array(code).itemsize
    (found,) = array(code, rest[at * size : (at + 1) * size])
    return base + found
