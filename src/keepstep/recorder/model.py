"""What one flight-recorder dump says, in one form for every format and backend.

Values that repeat (operations, groups, stacks) are shared objects, so that thousands of entries of
a thousand ranks fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.recorder.kinds import Backend as Backend
from keepstep.recorder.kinds import Direction as Direction
from keepstep.recorder.kinds import Severity as Severity
from keepstep.recorder.kinds import State as State


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack, innermost first in a stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class GroupName:
    """What an entry calls its process group. Names differ in meaning per backend and version."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a rank asked for: equal operations of two ranks can complete together.

    ``sizes`` are shapes of tensors in elements. ``peer`` is a rank *within the group* of a
    point-to-point operation, None where any source is meant or none was recorded.
    """

    name: str  # without the backend's prefix: all_reduce, all_gather_base, send, recv, ...
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    direction: Direction | None = None
    own: int | None = None  # this rank within the group, where a point-to-point name says it
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recorded operation. Times are nanoseconds of the host's clock; hosts differ."""

    record: int  # number within the recorder, over all groups
    pg_id: int  # the process's own number of the group; joins with ``Dump.status`` only
    group: GroupName
    operation: Operation
    is_p2p: bool = False
    sequence: int = 0  # of its kind (collective or point-to-point) within the group
    op_id: int = 0  # counts every logical operation of the group, those of a coalesced one too
    state: State = State.SCHEDULED
    retired: bool = False  # the recorder no longer waits for it; see ``meaning`` for what that says
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    duration_ms: float | None = None
    timeout_ms: int | None = None
    thread: str = ""
    stack: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as the dump's configuration lists it. ``ranks`` are global ranks."""

    name: GroupName
    ranks: tuple[int, ...] | None  # None where the backend does not say or says it wrongly


@dataclass(frozen=True, slots=True)
class Status:
    """A group's counters; None where nothing was counted.

    Legacy NCCL counts collective sequence numbers, nccl2 and gloo count operations, point-to-point
    ones included: compare ranks only where ``Dump.backend`` allows it.
    """

    enqueued: int | None
    started: int | None
    completed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One file of one rank."""

    version: str  # of the format: "1.0" to "2.10"; "0" for the bare list before it
    library: str = ""  # version of the communication library, "" where not written
    backend: Backend = Backend.UNKNOWN
    groups: tuple[Group, ...] = ()
    status: dict[int, Status] = field(default_factory=dict)  # by ``Entry.pg_id``
    entries: Sequence[Entry] = ()  # in the order of their record numbers
    extra: tuple[str, ...] = ()  # top-level keys that are known and not used, or unknown


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a file that a reader must know; never an exception."""

    code: str  # truncated, empty, hostile, foreign, duplicate, too-large, unknown-version, ...
    path: str
    text: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDump:
    """A dump and whose it is. What could not be derived is None, and a finding says so."""

    dump: Dump
    path: Path
    rank: int | None
    host: str | None = None
    attempt: str = ""  # "" where the tree has one attempt only
