"""What an environment variable does on a backend and a PyTorch version: a lint of old to new.

``status_of`` answers from the table in ``variable_table``. The table is also the allow-list: of the
environment only variables that it names are ever written down, so a secret never is.

This file runs in foreign interpreters (a stack's own): the standard library only, Python 3.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from keepstep.stack.variable_table import (
    GLOO,
    LAZY,
    LEGACY,
    NCCL2,
    OLDEST,
    ROWS,
    Row,
    Version,
)

READ = "read"  # it has an effect
IGNORED = "ignored"  # nothing on this backend and version reads it
RENAMED = "renamed"  # another name holds now; `effective` says whether the old one still counts
REMOVED = "removed"  # nothing reads it any more, and nothing took its place
UNKNOWN = "unknown"  # the table cannot say

_NEWEST: Version = (2, 15)
_FIRST_NCCL2: Version = (2, 14)  # 2.13.0 has no backend of this name

_SPELLINGS = {
    "gloo": GLOO,
    "nccl2": NCCL2,
    "nccl-lazy": LAZY,
    "nccl-legacy": LEGACY,
    "processgroupgloo": GLOO,
    "processgroupnccl": LEGACY,
    "processgroupnccl2": NCCL2,
    "processgroupnccllazy": LAZY,
}


# Where one run writes its files, and what one rank is called: never the same in two runs.
_OF_ONE_RUN = frozenset(
    {
        "NCCL_COMM_ID",
        "NCCL_HOSTID",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    }
)


@dataclass(frozen=True)
class Status:
    """What becomes of one variable."""

    name: str
    word: str  # READ, IGNORED, RENAMED, REMOVED or UNKNOWN
    effective: bool | None  # whether its value changes anything; None: not known
    to: str = ""  # the name that holds, when it was renamed
    source: str = ""  # of the statement
    note: str = ""


def status_of(name: str, *, backend: str, torch: str, use_nccl2: str | None = None) -> Status:
    """Say what becomes of an environment variable.

    Args:
        name: The variable.
        backend: What a job asks for ("gloo", "nccl", "cpu:gloo,cuda:nccl") or the class that was
            built ("ProcessGroupNCCL2").
        torch: The version, such as "2.15" or "2.14.1+cu130".
        use_nccl2: The value of TORCH_DIST_USE_NCCL2, which decides what "nccl" is.

    Returns:
        The status. With several backends it is that of the one on which most happens.

    >>> status_of("TORCH_NCCL_PROPAGATE_ERROR", backend="nccl", torch="2.14").word
    'read'
    >>> status_of("TORCH_NCCL_PROPAGATE_ERROR", backend="nccl", torch="2.15").word
    'ignored'
    """
    version = version_of(torch)
    found = [_status(name, each, version) for each in families(backend, torch, use_nccl2)]
    return max(found, key=lambda status: _WEIGHT[status.word])


_WEIGHT = {READ: 4, RENAMED: 3, REMOVED: 2, IGNORED: 1, UNKNOWN: 0}


def families(backend: str, torch: str, use_nccl2: str | None = None) -> tuple[str, ...]:
    """Return the implementations behind a spelling or a class name: gloo, legacy, nccl2, lazy.

    A name that the table does not know (mpi, a plugin) is returned as it is.

    >>> families("nccl", "2.15"), families("nccl", "2.14"), families("nccl", "2.15", "0")
    (('nccl2',), ('legacy',), ('legacy',))
    """
    spellings = [part.rpartition(":")[2].strip().lower() for part in backend.split(",")]
    return tuple(dict.fromkeys(_family(each, torch, use_nccl2) for each in spellings))


def _family(spelling: str, torch: str, use_nccl2: str | None) -> str:
    if spelling != "nccl":
        return _SPELLINGS.get(spelling, spelling)
    version = version_of(torch)
    if version >= (2, 15):
        return LEGACY if use_nccl2 == "0" else NCCL2
    return NCCL2 if version == (2, 14) and use_nccl2 == "1" else LEGACY


def version_of(torch: str) -> Version:
    """Return major and minor of a PyTorch version.

    Raises:
        ValueError: It is none.

    >>> version_of("2.14.1+cu130")
    (2, 14)
    """
    match = re.match(r"v?(\d+)\.(\d+)", torch.strip())
    if match is None:
        raise ValueError(f"{torch!r}: wanted a PyTorch version, such as 2.15 or 2.14.1")
    return int(match[1]), int(match[2])


def known(name: str) -> bool:
    """Tell whether the table has a variable, so that its value may be written down."""
    return name in ROWS


def names() -> tuple[str, ...]:
    """Return every variable of the table, in its order."""
    return tuple(ROWS)


def is_material(name: str) -> bool:
    """Tell whether a variable decides what runs, and not only who a rank is or what it logs."""
    return name in ROWS and name not in _OF_ONE_RUN and ROWS[name][-1].material


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that may be written down, and nothing else.

    >>> allowed({"NCCL_DEBUG": "INFO", "API_TOKEN": "s3cret"})
    {'NCCL_DEBUG': 'INFO'}
    """
    return {name: environment[name] for name in ROWS if name in environment}


def _status(name: str, family: str, version: Version) -> Status:
    rows = ROWS.get(name)
    if rows is None:
        return Status(name, UNKNOWN, None, note="not in the table")
    if version < OLDEST:
        return Status(name, UNKNOWN, None, note="the table begins with PyTorch 2.11")
    version = min(version, _NEWEST)
    for row in rows:
        if row.first <= version and (row.last is None or version <= row.last):
            return _in_force(row, family, version)
    if version < rows[0].first:
        text = f"PyTorch {_text(rows[0].first)} is the first that knows it"
        return Status(name, IGNORED, False, source=rows[0].source, note=text)
    return _gone(rows[-1])


def _in_force(row: Row, family: str, version: Version) -> Status:
    if family in (NCCL2, LAZY) and version < _FIRST_NCCL2 and row.readers is not None:
        return Status(row.name, UNKNOWN, None, note="there is no such backend before PyTorch 2.14")
    if row.readers is not None and family not in (GLOO, LEGACY, NCCL2, LAZY):
        return Status(row.name, UNKNOWN, None, note=f"nothing is known of the backend {family}")
    effective = row.readers is None or family in row.readers
    if row.instead and effective:
        return Status(row.name, RENAMED, True, row.instead, row.source, row.note)
    if effective:
        return Status(row.name, READ, True, source=row.source, note=row.note)
    elsewhere = row.elsewhere.get(family, "")
    if elsewhere.isupper():
        return Status(row.name, RENAMED, False, elsewhere, row.source, row.note)
    readers = ", ".join(row.readers or ())
    note = elsewhere or f"of the backends only these read it: {readers}"
    return Status(row.name, IGNORED, False, source=row.source, note=note)


def _gone(row: Row) -> Status:
    if row.later:
        return Status(row.name, RENAMED, False, row.later, row.gone_source, row.note)
    return Status(row.name, REMOVED, False, source=row.gone_source, note=row.note)


def _text(version: Version) -> str:
    return ".".join(map(str, version))
