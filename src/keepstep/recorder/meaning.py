"""What the fields of a dump mean: the same field says different things in each recorder.

Established for PyTorch 2.15.0 from its source, from recorded dumps and, for TorchComms, from its
own repository (August 2026). ``MEANINGS`` is the only place where this knowledge lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from keepstep.recorder.model import Backend, Entry, State


class Progress(StrEnum):
    """How far an operation really came, as far as its recorder can tell."""

    PENDING = "pending"  # enqueued; neither finished nor given up
    RUNNING = "running"  # seen on the device, not finished
    FINISHED = "finished"
    GIVEN_UP = "given up"  # timed out or failed
    ENDED = "ended"  # finished or given up: this recorder shows both alike
    UNKNOWN = "unknown"  # this recorder never says


class Counting(StrEnum):
    """What the numbers of ``Dump.status`` count."""

    COLLECTIVES = "collectives"  # sequence numbers; point-to-point ones mix in their own
    OPERATIONS = "operations"  # ``Entry.op_id``, point-to-point ones included
    NOTHING = "nothing"


class Retired(StrEnum):
    """What ``Entry.retired`` says of an operation that is not ``completed``."""

    GIVEN_UP = "given up"
    ENDED = "ended"
    NOTHING = "nothing"  # set when the operation is issued, or never


class Writes(StrEnum):
    """Which ranks write a dump by themselves when a collective times out."""

    ALL = "all ranks"
    DETECTING = "the ranks that detect the failure"
    NEVER = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """How to read the dumps of one recorder."""

    completed_shown: bool  # a finished operation gets the state ``completed``
    started_shown: bool  # ``started`` can be seen before ``completed`` (legacy: with timing on)
    retired: Retired
    counting: Counting
    first_op_id: int  # of a group's first operation
    sequence_per_group: bool  # False: one counter for all groups of the process
    group_ranks: bool  # the configuration lists global ranks that can be trusted
    point_to_point: bool  # send and receive are recorded
    peers: bool  # a point-to-point operation names its peer
    writes: Writes
    note: str


MEANINGS: dict[Backend, Meaning] = {
    Backend.NCCL_LEGACY: Meaning(
        completed_shown=True,
        started_shown=True,
        retired=Retired.GIVEN_UP,
        counting=Counting.COLLECTIVES,
        first_op_id=1,
        sequence_per_group=True,
        group_ranks=True,
        point_to_point=True,
        peers=True,
        writes=Writes.ALL,
        note="status of a group with point-to-point operations mixes two counters",
    ),
    Backend.NCCL2: Meaning(
        completed_shown=True,
        started_shown=False,
        retired=Retired.NOTHING,
        counting=Counting.OPERATIONS,
        first_op_id=0,
        sequence_per_group=True,
        group_ranks=True,
        point_to_point=True,
        peers=True,
        writes=Writes.DETECTING,
        note="an operation that timed out stays as it was: neither completed nor retired",
    ),
    Backend.GLOO: Meaning(
        completed_shown=False,
        started_shown=False,
        retired=Retired.ENDED,
        counting=Counting.OPERATIONS,
        first_op_id=1,
        sequence_per_group=True,
        group_ranks=False,
        point_to_point=False,
        peers=False,
        writes=Writes.NEVER,
        note="an operation that timed out looks like one that finished; send and receive are not"
        " recorded but counted; groups are listed without name and with group-local ranks",
    ),
    Backend.TORCHCOMMS: Meaning(
        completed_shown=True,
        started_shown=True,
        retired=Retired.NOTHING,
        counting=Counting.NOTHING,
        first_op_id=1,
        sequence_per_group=False,
        group_ranks=True,
        point_to_point=True,
        peers=False,
        writes=Writes.NEVER,
        note="one sequence for all communicators; the timeout is always 600 s",
    ),
    Backend.OTHER: Meaning(
        completed_shown=False,
        started_shown=False,
        retired=Retired.NOTHING,
        counting=Counting.OPERATIONS,
        first_op_id=0,
        sequence_per_group=True,
        group_ranks=True,
        point_to_point=True,
        peers=True,
        writes=Writes.NEVER,
        note="operations are retired when they are issued, so nothing says whether they finished",
    ),
}
# Sub-groups of a job with nccl-lazy are recorded, and dumped, as nccl2.
MEANINGS[Backend.NCCL_LAZY] = replace(
    MEANINGS[Backend.NCCL2],
    writes=Writes.NEVER,
    note="as nccl2, but a process that gives up leaves no dump of this recorder",
)
MEANINGS[Backend.UNKNOWN] = MEANINGS[Backend.OTHER]


def progress(entry: Entry, backend: Backend) -> Progress:
    """Return how far ``entry`` of a dump of ``backend`` came."""
    meaning = MEANINGS[backend]
    if entry.state is State.COMPLETED:
        return Progress.FINISHED
    if entry.retired and meaning.retired is Retired.GIVEN_UP:
        return Progress.GIVEN_UP
    if entry.retired and meaning.retired is Retired.ENDED:
        return Progress.ENDED
    if entry.state is State.STARTED:
        return Progress.RUNNING
    if not meaning.completed_shown and meaning.retired is Retired.NOTHING:
        return Progress.UNKNOWN
    return Progress.PENDING
