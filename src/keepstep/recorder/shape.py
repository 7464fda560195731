"""From plain data to a checked ``Table``: every format of a dump that PyTorch has written.

The entries themselves are in ``columns``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from keepstep.recorder import limits
from keepstep.recorder.columns import Columns, Row, read_columns
from keepstep.recorder.kinds import Backend, Severity
from keepstep.recorder.plain import RefusedError, load, shown
from keepstep.recorder.table import ABSENT, GroupRow, Table, pack
from keepstep.recorder.values import malformed, text

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
_RANKS = re.compile(r"\s*\[?\s*(\d{1,8}(?:\s*,\s*\d{1,8})*)?\s*\]?\s*")
_REMEMBERED = 1 << 20  # characters of a list of ranks
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


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
    columns = read_columns(rows, old=version == "0" or version.startswith("1."))
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
        library=text(top.get("comm_lib_version", top.get("nccl_version", "")), "library version"),
        backend=backend.value,
        groups=_groups(top.get("pg_config", {}), backend, notes),
        status=status,
        extra=sorted(text(key, "a key of the dump") for key in top if key not in _USED_KEYS),
        notes=notes,
        length=len(rows),
        calls=columns.calls,
        stacks=columns.stacks,
        columns={name: pack(numbers) for name, numbers in columns.numbers.items()},
        durations=b"" if columns.durations is None else columns.durations.tobytes(),
    )


def _note(notes: list[tuple[str, str, str]], code: str, problem: str) -> None:
    notes.append((code, problem, Severity.WARNING.value))


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
    version = text(top["version"], "version")
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
        raise malformed(f"entries: a list was wanted, seen: {shown(rows)}")
    if len(rows) > limits.ENTRIES:
        raise RefusedError("too-large", f"{len(rows)} entries, at most {limits.ENTRIES} are read")
    for number, row in enumerate(rows):
        if type(row) is not dict:
            raise malformed(f"entry {number}: dict was wanted, seen: {shown(row)}")
    return rows


def _status(status: object) -> list[tuple[int, int, int, int]]:
    found = []
    for key, counters in _dictionary(status, "pg_status").items():
        if not isinstance(counters, dict):
            raise malformed(f"pg_status: a dictionary was wanted, seen: {shown(counters)}")
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
        raise malformed(f"pg_status: a counter was wanted, seen: {shown(value)}")
    return value


def _groups(
    configuration: object, backend: Backend, notes: list[tuple[str, str, str]]
) -> list[GroupRow]:
    found: list[GroupRow] = []
    for key, group in _dictionary(configuration, "pg_config").items():
        if not isinstance(group, dict):
            raise malformed(f"pg_config: a dictionary was wanted, seen: {shown(group)}")
        name = group.get("name", str(key) if type(key) is int else key)
        description = text(group.get("desc", ""), "description of a group")
        found.append((text(name, "name of a group"), description, _ranks(group.get("ranks", ""))))
    if backend == Backend.GLOO and found:
        _note(
            notes,
            "group-ranks-unknown",
            "gloo lists its groups without their names and with ranks local to the group; who is"
            " in a group is not known from this dump",
        )
        return [(name, description, None) for name, description, _ in found]
    return found


def _ranks(ranks: object) -> str | None:
    """Return global ranks: written as the text "[0, 1]", "0,1", or as a list."""
    if isinstance(ranks, str):
        return (_known_ranks if len(ranks) <= _REMEMBERED else _ranks_of_text)(ranks)
    if not isinstance(ranks, (list, tuple)):
        raise malformed(f"pg_config: ranks were wanted, seen: {shown(ranks)}")
    if any(type(rank) is not int or not 0 <= rank < limits.RANK for rank in ranks):
        raise malformed("pg_config: a list of ranks holds something else than ranks")
    return ",".join(map(str, ranks)) or None


def _ranks_of_text(ranks: str) -> str | None:
    match = _RANKS.fullmatch(ranks) if len(ranks) < 10 * limits.TEXT * 16 else None
    if match is None:
        raise malformed(f"pg_config: ranks were wanted, seen: {shown(ranks)}")
    return ",".join(map(str, map(int, match[1].split(",")))) if match[1] else None


_known_ranks = lru_cache(64)(_ranks_of_text)  # the ranks of a job list the same groups


def _backend(columns: Columns, counted: bool, notes: list[tuple[str, str, str]]) -> Backend:
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


def _by_torchcomms(columns: Columns, counted: bool) -> bool:
    """Tell whether TorchComms wrote the dump: it describes a group by the name of its backend."""
    descriptions = {description for _, _, (_, description), *_ in columns.calls}
    p2p = any(is_p2p for _, _, _, is_p2p, *_ in columns.calls)
    return not counted and descriptions <= columns.prefixes and not p2p


# Single values


def _dictionary(value: object, what: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(f"{what}: a dictionary was wanted, seen: {shown(value)}")
    return value
