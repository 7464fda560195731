"""From plain data to a checked ``Table``: every format of a dump that PyTorch has written.

Entries are checked by column (all record numbers, then all states, ...), which is several times
faster than one entry after the other. One wrong value refuses the file: a dump that is damaged in
one place cannot be trusted in another.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from keepstep.recorder import limits
from keepstep.recorder.model import Backend, Direction, Severity
from keepstep.recorder.plain import RefusedError, load, shown
from keepstep.recorder.table import ABSENT, STATES, FrameRow, OperationRow, Table

NEWEST_VERSION = (2, 10)
_USED_KEYS = frozenset(
    ("version", "comm_lib_version", "nccl_version", "pg_config", "pg_status", "entries")
)
_PREFIXES = {
    "nccl": Backend.NCCL_LEGACY,
    "nccl2": Backend.NCCL2,
    "nccl-lazy": Backend.NCCL_LAZY,
    "gloo": Backend.GLOO,
}
_STATE_NUMBERS = {str(state): number for number, state in enumerate(STATES)}
_MICROSECONDS_BELOW = 9 * 10**15  # as nanoseconds since 1970 this would be April 1970

_PROFILING_NAME = re.compile(r"(?:([A-Za-z][\w.+-]*):)?(.*)", re.DOTALL)
_PEER = re.compile(r"(send|recv)(?: (\d{1,8})(->|<-)(\d{1,8}|\?))?")
_ARROWS = {"send": "->", "recv": "<-"}
_RANKS = re.compile(r"\s*\[?\s*(\d{1,8}(?:\s*,\s*\d{1,8})*)?\s*\]?\s*")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")

_FIELDS = frozenset(
    (
        *("record_id", "pg_id", "process_group", "seq_id", "collective_seq_id", "p2p_seq_id"),
        *("op_id", "is_p2p", "profiling_name", "state", "retired", "timeout_ms", "duration_ms"),
        *("input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "frames"),
        *("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"),
        *("thread_name", "thread_id"),
    )
)

Row = dict[str, Any]


def table(data: bytes) -> Table:
    """Return the dump that ``data`` (a pickle or JSON) holds.

    Raises:
        RefusedError: the data are no dump, incomplete, hostile or damaged.
    """
    loaded, trailing = load(data)
    notes: list[tuple[str, str, str]] = []
    if trailing:
        _note(notes, "trailing", f"{trailing} bytes follow the end of the dump; they are ignored")
    top = _top(loaded)
    version = _version(top, notes)
    rows = _rows(top)
    columns = _columns(rows, old=version == "0" or version.startswith("1."))
    status = _status(top.get("pg_status", {}))
    backend = _backend(columns, bool(status), notes) if rows else _backend_of_empty(top)
    if not rows:
        _note(
            notes,
            "nothing-recorded",
            "the dump is complete and holds no operation: nothing was in flight, or another"
            " backend's recorder was asked, or the recorder was off",
        )
    return Table(
        version=version,
        library=_text(top.get("comm_lib_version", top.get("nccl_version", "")), "library version"),
        backend=backend.value,
        groups=_groups(top.get("pg_config", {}), backend, notes),
        status=status,
        extra=sorted(_text(key, "a key of the dump") for key in top if key not in _USED_KEYS),
        notes=notes,
        group_names=columns.groups,
        operations=columns.operations,
        threads=columns.threads,
        stacks=columns.stacks,
        integers={name: column.tobytes() for name, column in columns.integers.items()},
        flags=columns.flags,
        durations=columns.durations,
    )


def _note(notes: list[tuple[str, str, str]], code: str, text: str) -> None:
    notes.append((code, text, Severity.WARNING.value))


def _malformed(text: str) -> RefusedError:
    return RefusedError("malformed", text)


# The dump as a whole


def _top(loaded: object) -> dict[Any, Any]:
    if isinstance(loaded, list):  # before version 1.0: the entries alone
        if all(isinstance(row, dict) and "profiling_name" in row for row in loaded):
            return {"entries": loaded}
        raise RefusedError("foreign", "a list that holds something else than recorded operations")
    if not isinstance(loaded, dict):
        raise RefusedError("foreign", f"plain data, but no dump: {shown(loaded)}")
    if not loaded.keys() & {"entries", "pg_config", "pg_status"}:
        raise RefusedError("foreign", "a dictionary without the keys of a dump")
    return loaded


def _version(top: dict[Any, Any], notes: list[tuple[str, str, str]]) -> str:
    if "version" not in top:
        if len(top) > 1:
            _note(notes, "unknown-version", "the dump has no version; read as the newest known")
            return ""
        return "0"
    version = _text(top["version"], "version")
    match = _VERSION.fullmatch(version)
    if match is None or (int(match[1]), int(match[2])) > NEWEST_VERSION or match[1] == "0":
        newest = ".".join(map(str, NEWEST_VERSION))
        _note(
            notes,
            "unknown-version",
            f"format version {shown(version)} is not known (1.0 to {newest} are); read as {newest}",
        )
    return version


def _rows(top: dict[Any, Any]) -> list[Row]:
    rows = top.get("entries", [])  # JSON leaves the key out when nothing was recorded
    if not isinstance(rows, list):
        raise _malformed(f"entries: a list was wanted, seen: {shown(rows)}")
    if len(rows) > limits.ENTRIES:
        raise RefusedError("too-large", f"{len(rows)} entries, at most {limits.ENTRIES} are read")
    _all_of(rows, (dict,), "entry")
    return rows


def _status(status: object) -> list[tuple[int, int, int, int]]:
    found = []
    for key, counters in _dictionary(status, "pg_status").items():
        if not isinstance(counters, dict):
            raise _malformed(f"pg_status: a dictionary was wanted, seen: {shown(counters)}")
        enqueued, started, completed = (
            _counter(counters.get(f"last_{event}_collective", ABSENT))
            for event in ("enqueued", "started", "completed")
        )
        found.append((_counter(key), enqueued, started, completed))
    return found


def _counter(value: object) -> int:
    """Return a counter: an integer in a pickle, its text in JSON; -1 where nothing was counted."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if type(value) is not int or not ABSENT <= value <= limits.INTEGER:
        raise _malformed(f"pg_status: a counter was wanted, seen: {shown(value)}")
    return value


def _groups(
    configuration: object, backend: Backend, notes: list[tuple[str, str, str]]
) -> list[tuple[str, str, tuple[int, ...] | None]]:
    found: list[tuple[str, str, tuple[int, ...] | None]] = []
    for key, group in _dictionary(configuration, "pg_config").items():
        if not isinstance(group, dict):
            raise _malformed(f"pg_config: a dictionary was wanted, seen: {shown(group)}")
        name = group.get("name", str(key) if type(key) is int else key)
        description = _text(group.get("desc", ""), "description of a group")
        found.append((_text(name, "name of a group"), description, _ranks(group.get("ranks", ""))))
    if backend == Backend.GLOO and found:
        _note(
            notes,
            "group-ranks-unknown",
            "gloo lists its groups without their names and with ranks local to the group; who is"
            " in a group is not known from this dump",
        )
        return [(name, description, None) for name, description, _ in found]
    return found


def _ranks(ranks: object) -> tuple[int, ...] | None:
    """Return global ranks: written as the text "[0, 1]", "0,1", or as a list."""
    if isinstance(ranks, str):
        match = _RANKS.fullmatch(ranks) if len(ranks) < 10 * limits.TEXT * 16 else None
        if match is None:
            raise _malformed(f"pg_config: ranks were wanted, seen: {shown(ranks)}")
        return tuple(map(int, match[1].split(","))) if match[1] else None
    if not isinstance(ranks, (list, tuple)):
        raise _malformed(f"pg_config: ranks were wanted, seen: {shown(ranks)}")
    if any(type(rank) is not int or not 0 <= rank < limits.RANK for rank in ranks):
        raise _malformed("pg_config: a list of ranks holds something else than ranks")
    return tuple(ranks) or None


def _backend(columns: _Columns, counted: bool, notes: list[tuple[str, str, str]]) -> Backend:
    prefixes = columns.prefixes
    if prefixes == {""}:
        return Backend.UNKNOWN
    if _by_torchcomms(columns, counted):
        return Backend.TORCHCOMMS
    backends = {_PREFIXES.get(prefix, Backend.OTHER) for prefix in prefixes}
    if len(backends) == 1:
        return backends.pop()
    _note(
        notes,
        "mixed-backends",
        f"operations of several backends in one dump: {', '.join(sorted(prefixes))}",
    )
    return Backend.UNKNOWN


def _backend_of_empty(top: dict[Any, Any]) -> Backend:
    """Return the backend of a dump without entries: only legacy NCCL writes its version."""
    version = top.get("nccl_version", top.get("comm_lib_version"))
    return Backend.NCCL_LEGACY if version else Backend.UNKNOWN


def _by_torchcomms(columns: _Columns, counted: bool) -> bool:
    """Tell whether TorchComms wrote the dump: it describes a group by the name of its backend."""
    descriptions = {description for _, description in columns.groups}
    return not counted and descriptions <= columns.prefixes and not any(columns.flags["is_p2p"])


# The entries, by column


class _Columns(NamedTuple):
    """The entries of a dump: a value per entry in each column, distinct values in the lists."""

    groups: list[tuple[str, str]]
    operations: list[OperationRow]
    threads: list[str]
    stacks: list[tuple[FrameRow, ...]]
    prefixes: set[str]
    integers: dict[str, array[int]]
    flags: dict[str, bytes]
    durations: bytes


class _Cells:
    """The values of all entries, by key."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._columns: dict[str, tuple[Any, ...]] = {}
        keys = [key for key in rows[0] if key in _FIELDS] if rows else []
        # All keys of an entry at once, where every entry has the same ones (nearly always).
        if len(keys) > 1:
            with suppress(KeyError):
                cells = zip(*map(itemgetter(*keys), rows), strict=True)
                self._columns = dict(zip(keys, cells, strict=True))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        """Tell whether the entries have ``key``, judged by the first."""
        return bool(self._rows) and key in self._rows[0]

    def get(self, key: str, missing: Any = None) -> Sequence[Any]:
        """Return the values of ``key``; ``missing`` where an entry does not have it."""
        if key in self._columns:
            return self._columns[key]
        return [row.get(key, missing) for row in self._rows]


class _Distinct(dict[Any, int]):
    """Numbers distinct keys in the order of their first use, and checks each of them once."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        super().__init__()
        self.check = check
        self.values_in_order: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self.values_in_order.append(self.check(key))
        number = self[key] = len(self.values_in_order) - 1
        return number

    def column(self, keys: Sequence[Any], what: str) -> array[int]:
        try:
            return array("q", map(self.__getitem__, keys))
        except TypeError:  # a key that cannot be hashed holds lists or dictionaries
            raise _malformed(f"{what}: something nested where a plain value was wanted") from None


def _columns(rows: list[Row], *, old: bool) -> _Columns:
    cells = _Cells(rows)
    integers, flags = {}, {}
    prefixes: set[str] = set()
    operations = _Distinct(lambda key: _operation(key, prefixes))
    integers["operation"] = operations.column(_operation_keys(cells), "operation")
    groups = _Distinct(_group_name)
    integers["group"] = groups.column(_group_keys(cells), "process_group")
    threads = _Distinct(_thread)
    names = list(zip(cells.get("thread_name", ""), cells.get("thread_id", ""), strict=True))
    integers["thread"] = threads.column(names, "thread")
    stacks = _Distinct(_stack)
    integers["stack"] = stacks.column(_stack_keys(cells), "frames")

    integers["record"] = (
        _integers(cells, "record_id", 0) if "record_id" in cells else array("q", range(len(cells)))
    )
    integers["pg_id"] = _integers(cells, "pg_id", -1, missing=-1)
    integers["op_id"] = _integers(cells, "op_id", -1, missing=0)
    integers["timeout_ms"] = _integers(cells, "timeout_ms", ABSENT, missing=ABSENT)
    integers["created_ns"] = _created(cells, old=old)
    for event in ("started", "completed"):
        integers[f"{event}_ns"] = _times(cells, f"time_discovered_{event}_ns")
    flags["state"] = _states(cells)
    flags["retired"] = _booleans(cells, "retired")
    flags["is_p2p"] = (
        _booleans(cells, "is_p2p")
        if "is_p2p" in cells
        else bytes(
            operations.values_in_order[number][5] is not None for number in integers["operation"]
        )
    )
    integers["sequence"] = _sequences(cells, flags["is_p2p"])
    return _Columns(
        groups=groups.values_in_order,
        operations=operations.values_in_order,
        threads=threads.values_in_order,
        stacks=stacks.values_in_order,
        prefixes=prefixes,
        integers=integers,
        flags=flags,
        durations=_durations(cells),
    )


def _all_of(values: Sequence[object], types: tuple[type, ...], what: str) -> None:
    if set(map(type, values)) <= set(types):
        return
    number, value = next((n, v) for n, v in enumerate(values) if type(v) not in types)
    wanted = " or ".join(kind.__name__ for kind in types)
    raise _malformed(f"entry {number}: {what}: {wanted} was wanted, seen: {shown(value)}")


def _integers(cells: _Cells, key: str, lowest: int, *, missing: Any = None) -> array[int]:
    values = cells.get(key, missing)
    _all_of(values, (int,), key)
    return _bounded(values, key, lowest)


def _bounded(values: Sequence[int], key: str, lowest: int) -> array[int]:
    try:
        column = array("q", values)
    except OverflowError:
        raise _malformed(f"{key}: a number beyond 64 bits") from None
    if column and min(column) < lowest:
        raise _malformed(f"{key}: {min(column)} is below {lowest}")
    return column


def _times(cells: _Cells, key: str, missing: Any = None) -> array[int]:
    """Return times; a pickle has None for an absent one, JSON has 0."""
    values = cells.get(key, missing)
    _all_of(values, (int, type(None)), key)
    return _bounded([value or ABSENT for value in values], key, ABSENT)


def _created(cells: _Cells, *, old: bool) -> array[int]:
    if "time_created_us" in cells:
        return _scaled(_times(cells, "time_created_us"))
    created = _times(cells, "time_created_ns")
    return _scaled(created) if old else created


def _scaled(created: array[int]) -> array[int]:
    """Return nanoseconds: the first versions wrote microseconds."""
    return array("q", (time * 1000 if 0 < time < _MICROSECONDS_BELOW else time for time in created))


def _booleans(cells: _Cells, key: str) -> bytes:
    values = cells.get(key, False)
    _all_of(values, (bool,), key)
    return bytes(values)


def _states(cells: _Cells) -> bytes:
    values = cells.get("state")
    _all_of(values, (str,), "state")
    unknown = set(values) - _STATE_NUMBERS.keys()
    if unknown:
        raise _malformed(
            f"state: one of {', '.join(STATES)} was wanted, seen: {shown(min(unknown))}"
        )
    return bytes(map(_STATE_NUMBERS.__getitem__, values))


def _sequences(cells: _Cells, p2p: bytes) -> array[int]:
    """Return each entry's number among those of its kind; before 2.0 there was one number."""
    if "collective_seq_id" not in cells:
        return _integers(cells, "seq_id", 0)
    collective = _integers(cells, "collective_seq_id", 0)
    point_to_point = _integers(cells, "p2p_seq_id", 0, missing=0)
    if not any(p2p):
        return collective
    return array(
        "q", (b if flag else a for a, b, flag in zip(collective, point_to_point, p2p, strict=True))
    )


def _durations(cells: _Cells) -> bytes:
    values = cells.get("duration_ms")
    _all_of(values, (float, int, type(None)), "duration_ms")
    if values.count(None) == len(values):
        return b""
    try:
        column = array("d", (math.nan if value is None else value for value in values))
    except OverflowError:
        raise _malformed("duration_ms: a number too large") from None
    for number, (value, stored) in enumerate(zip(values, column, strict=True)):
        if value is not None and not 0 <= stored < math.inf:
            raise _malformed(f"entry {number}: duration_ms: {shown(value)} is no duration")
    return column.tobytes()


def _lists(cells: _Cells, key: str) -> Sequence[Any]:
    values = cells.get(key, ())
    _all_of(values, (list, tuple), key)
    if sum(map(len, values)) > limits.VALUES:
        raise RefusedError("too-large", f"{key}: more than {limits.VALUES} values")
    return values


def _operation_keys(cells: _Cells) -> list[tuple[Any, ...]]:
    names = cells.get("profiling_name")
    _all_of(names, (str,), "profiling_name")
    return list(
        zip(
            names,
            _size_keys(cells, "input_sizes"),
            map(tuple, _lists(cells, "input_dtypes")),
            _size_keys(cells, "output_sizes"),
            map(tuple, _lists(cells, "output_dtypes")),
            strict=True,
        )
    )


def _size_keys(cells: _Cells, key: str) -> list[tuple[Any, ...]]:
    try:
        return [tuple(map(tuple, shapes)) for shapes in _lists(cells, key)]
    except TypeError:
        raise _malformed(f"{key}: shapes (lists of numbers) were wanted") from None


def _operation(key: tuple[Any, ...], prefixes: set[str]) -> OperationRow:
    profiling_name, input_sizes, input_dtypes, output_sizes, output_dtypes = key
    match = _PROFILING_NAME.fullmatch(_text(profiling_name, "profiling_name"))
    assert match is not None  # it matches every text
    prefixes.add(match[1] or "")
    name, direction, own, peer = match[2], None, None, None
    if peers := _PEER.fullmatch(name):
        if peers[3] is None:
            direction = peers[1]
        elif peers[3] == _ARROWS[peers[1]]:
            name, direction, own = peers[1], peers[1], int(peers[2])
            peer = None if peers[4] == "?" else int(peers[4])
    for sizes in (input_sizes, output_sizes):
        for dimension in chain.from_iterable(sizes):
            if type(dimension) is not int or not 0 <= dimension <= limits.INTEGER:
                raise _malformed(f"a size of a tensor was wanted, seen: {shown(dimension)}")
    for dtype in chain(input_dtypes, output_dtypes):
        _text(dtype, "type of a tensor")
    return (
        name.removeprefix("_"),
        input_sizes,
        input_dtypes,
        output_sizes,
        output_dtypes,
        Direction(direction).value if direction else None,
        own,
        peer,
    )


def _group_keys(cells: _Cells) -> Sequence[Any]:
    """Return (name, description); before 2.0 the name alone, or the number of the group."""
    if "process_group" not in cells:
        if "pg_name" in cells:
            return list(zip(cells.get("pg_name"), cells.get("pg_desc", ""), strict=True))
        return [(shown(number), "") for number in cells.get("pg_id")]
    values = cells.get("process_group")
    _all_of(values, (tuple, list, str), "process_group")
    return [(value, "") if type(value) is str else tuple(value) for value in values]


def _group_name(key: tuple[Any, ...]) -> tuple[str, str]:
    if len(key) != 2:
        raise _malformed("process_group: a name and a description were wanted")
    return _text(key[0], "name of a group"), _text(key[1], "description of a group")


def _thread(key: tuple[Any, Any]) -> str:
    name, number = key
    number = shown(number) if type(number) is int else _text(number, "thread_id")
    return f"{_text(name, 'thread_name')} {number}".strip()


_FRAME_FIELDS = itemgetter("name", "filename", "line")


def _stack_keys(cells: _Cells) -> list[tuple[Any, ...]]:
    try:
        return [tuple(map(_FRAME_FIELDS, frames)) for frames in _lists(cells, "frames")]
    except (TypeError, KeyError, IndexError):
        raise _malformed("frames: dictionaries with name, filename and line were wanted") from None


def _stack(key: tuple[Any, ...]) -> tuple[FrameRow, ...]:
    for function, file, line in key:
        _text(function, "function of a frame")
        _text(file, "file of a frame")
        if type(line) is not int or not -1 <= line < 1 << 32:
            raise _malformed(f"a line number was wanted, seen: {shown(line)}")
    return key


# Single values


def _dictionary(value: object, what: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _malformed(f"{what}: a dictionary was wanted, seen: {shown(value)}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{what}: a text was wanted, seen: {shown(value)}")
    if len(value) > limits.TEXT:
        raise RefusedError("too-large", f"{what}: a text of {len(value)} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            text = f"{what}: half a character (a lone surrogate): {shown(value)}"
            raise _malformed(text) from None
    return value
