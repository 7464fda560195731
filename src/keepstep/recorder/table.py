"""The form in which a dump travels from the process that read it: columns and distinct values.

Only what ``marshal`` carries, and only values that ``shape`` has checked.
"""

from __future__ import annotations

from typing import NamedTuple

from keepstep.recorder.model import State

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


class Table(NamedTuple):
    """One dump. The byte strings hold one value per entry: see ``shape.columns``."""

    version: str
    library: str
    backend: str
    groups: list[tuple[str, str, tuple[int, ...] | None]]  # name, description, ranks
    status: list[tuple[int, int, int, int]]  # group number, enqueued, started, completed
    extra: list[str]
    notes: list[tuple[str, str, str]]  # code, text, severity
    group_names: list[tuple[str, str]]
    operations: list[OperationRow]
    threads: list[str]
    stacks: list[tuple[FrameRow, ...]]
    integers: dict[str, bytes]  # array("q") by name of the field
    flags: dict[str, bytes]  # one byte a value
    durations: bytes  # array("d"), NaN where absent; empty where no entry has one
