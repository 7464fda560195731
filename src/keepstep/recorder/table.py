"""The form in which a dump travels from the process that read it: columns and distinct values.

Only what ``marshal`` carries, and only values that ``shape`` has checked.
"""

from __future__ import annotations

import sys
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
"""Integers, one an entry: the base, a code, and bytes.

With the code "" each is the base, with "range" they count up from it. Otherwise the code is that of
an ``array`` with the lowest bits of each; none is below the base, and the bits tell them apart.
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
    first, last, length = values[0], values[-1], len(values)
    if values.count(first) == length:
        return first, "", b""
    if last - first == length - 1 and values == array("q", range(first, last + 1)):
        return first, "range", b""
    base, code = 0, narrow(abs(last - first))  # of times this is far, so they are not gone over
    if code != "q":
        base = min(values)
        code = narrow(max(values) - base)
    return (0 if code == "q" else base), code, _low_bytes(values, code)


def narrow(most: int) -> str:
    """Return the typecode of the shortest array that holds numbers from 0 to ``most``."""
    return next((code for code, bits in _NARROW.items() if most < 1 << bits), "q")


_NARROW = {"B": 8, "H": 16, "I": 32}
_ALL_BITS = 64


def _low_bytes(values: array[int], code: str) -> bytes:
    """Return the lowest bits of each number, as many as ``code`` has."""
    step = _ALL_BITS // _NARROW.get(code, _ALL_BITS)
    parts = array(code, values.tobytes())
    return parts[step - 1 if sys.byteorder == "big" else 0 :: step].tobytes()


def unpack(column: Column, length: int) -> Sequence[int]:
    """Return the integers of a column."""
    base, code, rest = column
    if not code:
        return list(repeat(base, length))
    if code == "range":
        return range(base, base + length)
    found = array(code, rest).tolist()
    if not base:
        return found
    mask = (1 << _NARROW[code]) - 1
    return [base + ((low - base) & mask) for low in found]


def value(column: Column, at: int) -> int:
    """Return the integer of one entry."""
    base, code, rest = column
    if not code:
        return base
    if code == "range":
        return base + at
    size = _NARROW.get(code, _ALL_BITS) // 8
    (low,) = array(code, rest[at * size : (at + 1) * size])
    return base + ((low - base) & ((1 << 8 * size) - 1)) if base else low
