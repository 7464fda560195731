"""What many entries of a dump have in common: the calls, and the stacks they were made from."""

from __future__ import annotations

import marshal
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from operator import itemgetter
from typing import Any

from keepstep.recorder import limits
from keepstep.recorder.kinds import Direction
from keepstep.recorder.plain import RefusedError, shown
from keepstep.recorder.table import ABSENT, STATES, CallRow, FrameRow, OperationRow, narrow
from keepstep.recorder.values import all_of, at_least, malformed, of_type, text

LISTS = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
TYPED = {"pg_id": int, "is_p2p": bool, "retired": bool, "timeout_ms": int}
NAMES = (
    *("profiling_name", "process_group", "pg_name", "pg_desc", "state"),
    *("thread_name", "thread_id"),
)
_STATE_NUMBERS = {str(state): number for number, state in enumerate(STATES)}
_REMEMBERED = 1 << 12  # checked operations, or frames, of earlier files
_REMEMBERED_BYTES = 1 << 10  # of each
_PROFILING_NAME = re.compile(r"(?:([A-Za-z][\w.+-]*):)?(.*)", re.DOTALL)
_PEER = re.compile(r"(send|recv)(?: (\d{1,8})(->|<-)(\d{1,8}|\?))?")
_ARROWS = {"send": "->", "recv": "<-"}
_FRAME_FIELDS = itemgetter("name", "filename", "line")

Cells = Mapping[str, Sequence[Any]]
"""The values of all entries, by key."""


def read_calls(cells: Cells, length: int, prefixes: set[str]) -> tuple[list[CallRow], array[int]]:
    """Return the different calls and which one each entry is."""
    for key, kind in TYPED.items():
        if key in cells:
            all_of(cells[key], (kind,), key)
    keys = [key for key in (*TYPED, *NAMES) if key in cells]
    lists = [key for key in LISTS if key in cells]
    columns = [_hashable(cells[key]) if key == "process_group" else cells[key] for key in keys]
    # Lists cannot be keys, but their bytes can. What a file refers to many times stands there once,
    # so that it does not unfold here.
    of_lists = map(marshal.dumps, zip(*(cells[key] for key in lists), strict=True))
    told = zip(of_lists if lists else repeat(_NO_LISTS, length), *columns, strict=True)
    known: dict[tuple[Any, ...], int] = defaultdict(count().__next__)
    try:
        numbers = list(map(known.__getitem__, told))
    except ValueError:
        raise malformed("sizes or types of tensors: something nested too deeply") from None
    except TypeError:  # a key that cannot be hashed
        raise malformed("an entry: something nested where a plain value was wanted") from None
    rows: dict[CallRow, int] = {}
    place = []
    for packed, *values in known:
        row = _call(dict(zip(keys, values, strict=True)), lists, packed, prefixes)
        place.append(rows.setdefault(row, len(rows)))
    if len(rows) < len(place):
        numbers = list(map(place.__getitem__, numbers))
    return list(rows), array(narrow(len(rows)), numbers)


_NO_LISTS = marshal.dumps(())


def _hashable(groups: Sequence[Any]) -> Sequence[Any]:
    """Return names of groups: pairs are tuples in a pickle and lists in JSON."""
    all_of(groups, (tuple, list, str), "process_group")
    return (
        groups
        if type(groups[0]) is tuple
        else [tuple(group) if type(group) is list else group for group in groups]
    )


def _call(
    cell: Mapping[str, Any], lists: Sequence[str], packed: bytes, prefixes: set[str]
) -> CallRow:
    profiling_name = text(cell.get("profiling_name"), "profiling_name")
    if len(packed) + len(profiling_name) <= _REMEMBERED_BYTES:
        prefix, operation = _known_operation(profiling_name, tuple(lists), packed)
    else:
        prefix, operation = _operation(profiling_name, lists, packed)
    prefixes.add(prefix)
    name, number = cell.get("thread_name", ""), cell.get("thread_id", "")
    number = shown(number) if type(number) is int else text(number, "thread_id")
    state = of_type(cell.get("state"), "state", str)
    if state not in _STATE_NUMBERS:
        raise malformed(f"state: one of {', '.join(STATES)} was wanted, seen: {shown(state)}")
    return (
        operation,
        at_least(-1, cell.get("pg_id", -1), "pg_id"),
        _group(cell),
        cell.get("is_p2p", operation[5] is not None),
        _STATE_NUMBERS[state],
        cell.get("retired", False),
        at_least(ABSENT, cell.get("timeout_ms", ABSENT), "timeout_ms"),
        f"{text(name, 'thread_name')} {number}".strip(),
    )


def _operation(
    profiling_name: str, lists: Sequence[str], packed: bytes
) -> tuple[str, OperationRow]:
    """Return the prefix of its name, and the operation."""
    match = _PROFILING_NAME.fullmatch(profiling_name)
    assert match is not None  # it matches every text
    name, direction, own, peer = match[2], None, None, None
    if peers := _PEER.fullmatch(name):
        if peers[3] is None:
            direction = peers[1]
        elif peers[3] == _ARROWS[peers[1]]:
            name, direction, own = peers[1], peers[1], int(peers[2])
            peer = None if peers[4] == "?" else int(peers[4])
    cell = dict(zip(lists, marshal.loads(packed), strict=True))
    return match[1] or "", (
        name.removeprefix("_"),
        _sizes(cell, "input_sizes"),
        _dtypes(cell, "input_dtypes"),
        _sizes(cell, "output_sizes"),
        _dtypes(cell, "output_dtypes"),
        Direction(direction).value if direction else None,
        own,
        peer,
    )


# The ranks of a job call the same operations: what one file says, the next one says again.
_known_operation = lru_cache(_REMEMBERED)(_operation)


def _sizes(cell: Mapping[str, Any], key: str) -> tuple[tuple[int, ...], ...]:
    shapes = _listed(cell.get(key, ()), key)
    if sum(len(_listed(shape, key)) for shape in shapes) > limits.OPERATION_VALUES:
        raise RefusedError("too-large", f"{key}: more than {limits.OPERATION_VALUES} dimensions")
    for dimension in chain.from_iterable(shapes):
        at_least(0, dimension, f"a size in {key}")
    return tuple(map(tuple, shapes))


def _dtypes(cell: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(text(dtype, "type of a tensor") for dtype in _listed(cell.get(key, ()), key))


def _listed(value: object, what: str) -> Sequence[Any]:
    found: Sequence[Any] = of_type(value, what, list, tuple)
    if len(found) > limits.OPERATION_VALUES:
        raise RefusedError("too-large", f"{what}: more than {limits.OPERATION_VALUES} values")
    return found


def _group(cell: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and description; before 2.0 the name alone, or the number of the group."""
    if "process_group" in cell:
        found = of_type(cell["process_group"], "process_group", tuple, list, str)
        pair = (found, "") if type(found) is str else tuple(found)
    elif "pg_name" in cell:
        pair = cell["pg_name"], cell.get("pg_desc", "")
    else:
        pair = shown(cell.get("pg_id", -1)), ""
    if len(pair) != 2:
        raise malformed("process_group: a name and a description were wanted")
    return text(pair[0], "name of a group"), text(pair[1], "description of a group")


def read_stacks(
    values: Sequence[Any] | None, length: int
) -> tuple[list[tuple[FrameRow, ...]], array[int]]:
    """Return the different stacks and which one each entry has.

    PyTorch's pickles hold each frame once, so that most stacks are known again by the identity of
    their frames.
    """
    if values is None:
        return [()], array("B", bytes(length))
    all_of(values, (list, tuple), "frames")
    if sum(map(len, values)) > limits.VALUES:
        raise RefusedError("too-large", f"frames: more than {limits.VALUES} values")
    told = [tuple(map(id, frames)) for frames in values]
    known = dict(zip(told, values, strict=True))
    rows: dict[tuple[FrameRow, ...], int] = {}
    try:
        for one, frames in known.items():
            row = tuple(map(_FRAME_FIELDS, frames))
            if row not in rows:
                for frame in row:
                    short = len(frame[0]) + len(frame[1]) <= _REMEMBERED_BYTES
                    (_known_frame if short else _frame)(*frame)
            known[one] = rows.setdefault(row, len(rows))
    except (TypeError, KeyError, IndexError):
        raise malformed("frames: dictionaries with name, filename and line were wanted") from None
    return list(rows), array(narrow(len(rows)), map(known.__getitem__, told))


def _frame(function: object, file: object, line: object) -> None:
    text(function, "function of a frame")
    text(file, "file of a frame")
    if type(line) is not int or not -1 <= line < 1 << 32:
        raise malformed(f"a line number was wanted, seen: {shown(line)}")


_known_frame = lru_cache(_REMEMBERED, typed=True)(_frame)
