"""The entries of a dump: from the dictionaries of a file to checked columns.

Most of what entries say repeats: the operation, its group, its state. Entries that agree in all of
that are one *call*, and each different call is checked once. The numbers that differ are checked by
column. One wrong value refuses the file: a dump that is damaged in one place cannot be trusted in
another.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from keepstep.recorder.calls import LISTS, NAMES, TYPED, Cells, read_calls, read_stacks
from keepstep.recorder.plain import shown
from keepstep.recorder.table import ABSENT, CallRow, FrameRow
from keepstep.recorder.values import all_of, malformed

_MICROSECONDS_BELOW = 9 * 10**15  # as nanoseconds since 1970 this would be April 1970
_OWN = (
    *("record_id", "seq_id", "collective_seq_id", "p2p_seq_id", "op_id"),
    *("time_created_us", "time_created_ns"),
    *("time_discovered_started_ns", "time_discovered_completed_ns", "frames"),
)
_USED = (*LISTS, *TYPED, *NAMES, *_OWN)
_DURATION = "duration_ms"  # only of finished operations, and only with timing on
# What an entry means that lacks one of these; it must have the others.
_MISSING: dict[str, Any] = {
    **dict.fromkeys((*LISTS, "frames"), ()),
    **dict.fromkeys(("pg_desc", "thread_name", "thread_id"), ""),
    **{"pg_id": -1, "retired": False, "is_p2p": False, "timeout_ms": ABSENT},
    **{"p2p_seq_id": 0, "op_id": 0},
}

Row = dict[str, Any]


class Columns(NamedTuple):
    """The entries of a dump, in the order of their record numbers; see ``Table``."""

    calls: list[CallRow]
    stacks: list[tuple[FrameRow, ...]]
    numbers: dict[str, array[int]]
    durations: array[float] | None
    prefixes: set[str]  # of the operations' names: the backends


def read_columns(rows: list[Row], *, old: bool) -> Columns:
    """Return the checked entries; ``old`` is a format before 2.0.

    Raises:
        RefusedError: a value is not what it should be.
    """
    if not rows:
        return Columns([], [], {name: array("q") for name in COLUMNS}, None, set())
    cells = _cells(rows)
    prefixes: set[str] = set()
    numbers = {}
    calls, numbers["call"] = read_calls(cells, len(rows), prefixes)
    stacks, numbers["stack"] = read_stacks(cells.get("frames"), len(rows))
    numbers["record"] = (
        _integers(cells["record_id"], "record_id", 0)
        if "record_id" in cells
        else array("q", range(len(rows)))
    )
    numbers["op_id"] = _integers(cells.get("op_id") or [0] * len(rows), "op_id", -1)
    numbers["sequence"] = _sequences(cells, calls, numbers["call"])
    numbers["created_ns"] = _created(cells, len(rows), old=old)
    for event in ("started", "completed"):
        numbers[f"{event}_ns"] = _times(cells, f"time_discovered_{event}_ns", len(rows))
    durations = _durations([row.get(_DURATION) for row in rows])
    found = Columns(calls, stacks, numbers, durations, prefixes)
    return found if _in_order(numbers["record"]) else _sorted(found)


COLUMNS = (
    *("call", "stack", "record", "op_id", "sequence", "created_ns", "started_ns", "completed_ns"),
)


def _in_order(records: array[int]) -> bool:
    first, last = records[0], records[-1]
    if last - first == len(records) - 1 and records == array("q", range(first, last + 1)):
        return True
    return all(a <= b for a, b in pairwise(records))


def _sorted(found: Columns) -> Columns:
    records = found.numbers["record"]
    order = sorted(range(len(records)), key=records.__getitem__)
    numbers = {
        name: array(column.typecode, map(column.__getitem__, order))
        for name, column in found.numbers.items()
    }
    durations = found.durations
    if durations is not None:
        durations = array("d", map(durations.__getitem__, order))
    return found._replace(numbers=numbers, durations=durations)


def _cells(rows: list[Row]) -> Cells:
    """Return the values of all entries by key; of keys that no entry has, nothing."""
    if len({len(row) - (_DURATION in row) for row in rows}) == 1:
        with suppress(KeyError):
            return _picked(rows, rows[0])
    used = frozenset().union(*rows)
    fill = {key: _MISSING.get(key) for key in _USED if key in used}
    return _picked([{**fill, **row} for row in rows], used)


def _picked(rows: list[Row], used: Container[str]) -> Cells:
    keys = [key for key in _USED if key in used]
    if len(keys) < 2:
        raise malformed("entries: they have no key, or one, of those that a recorder writes")
    return dict(zip(keys, zip(*map(itemgetter(*keys), rows), strict=True), strict=True))


def _integers(values: Sequence[Any], key: str, lowest: int) -> array[int]:
    all_of(values, (int,), key)
    return _bounded(values, key, lowest)


def _bounded(values: Sequence[int], key: str, lowest: int) -> array[int]:
    try:
        column = array("q", values)
    except OverflowError:
        raise malformed(f"{key}: a number beyond 64 bits") from None
    if min(column) < lowest:
        raise malformed(f"{key}: {min(column)} is below {lowest}")
    return column


def _times(cells: Cells, key: str, length: int) -> array[int]:
    """Return times; a pickle has None for an absent one, JSON has 0."""
    values = cells.get(key)
    if values is None or values.count(None) == length:
        return array("q", [ABSENT]) * length
    all_of(values, (int, type(None)), key)
    return _bounded([value or ABSENT for value in values], key, ABSENT)


def _created(cells: Cells, length: int, *, old: bool) -> array[int]:
    if "time_created_us" in cells:
        return _scaled(_times(cells, "time_created_us", length))
    created = _times(cells, "time_created_ns", length)
    return _scaled(created) if old else created


def _scaled(created: array[int]) -> array[int]:
    """Return nanoseconds: the first versions wrote microseconds."""
    return array("q", (time * 1000 if 0 < time < _MICROSECONDS_BELOW else time for time in created))


def _sequences(cells: Cells, calls: list[CallRow], numbers: array[int]) -> array[int]:
    """Return each entry's number among those of its kind; before 2.0 there was one number."""
    key = "collective_seq_id" if "collective_seq_id" in cells else "seq_id"
    collective = _integers(cells.get(key, [None]), key, 0)
    if key == "seq_id":
        return collective
    point_to_point = _integers(cells.get("p2p_seq_id") or [0] * len(numbers), "p2p_seq_id", 0)
    p2p = [is_p2p for _, _, _, is_p2p, *_ in calls]
    if not any(p2p):
        return collective
    pairs = zip(collective, point_to_point, map(p2p.__getitem__, numbers), strict=True)
    return array("q", (b if flag else a for a, b, flag in pairs))


def _durations(values: list[Any]) -> array[float] | None:
    if values.count(None) == len(values):
        return None
    all_of(values, (float, int, type(None)), _DURATION)
    try:
        column = array("d", (math.nan if value is None else value for value in values))
    except OverflowError:
        raise malformed("duration_ms: a number too large") from None
    for number, (value, stored) in enumerate(zip(values, column, strict=True)):
        if value is not None and not 0 <= stored < math.inf:
            raise malformed(f"entry {number}: duration_ms: {shown(value)} is no duration")
    return column
