"""What a state means in each recorder, from the table of the known backends."""

from __future__ import annotations

import pytest

from keepstep.recorder.meaning import MEANINGS, Counting, Progress, Writes, progress
from keepstep.recorder.model import Backend, Entry, GroupName, Operation, State

P = Progress
LEGACY, NCCL2, LAZY = Backend.NCCL_LEGACY, Backend.NCCL2, Backend.NCCL_LAZY
GLOO, COMMS, OTHER = Backend.GLOO, Backend.TORCHCOMMS, Backend.OTHER


@pytest.mark.parametrize(
    ("backend", "state", "retired", "expected"),
    [
        (LEGACY, "completed", True, P.FINISHED),
        (LEGACY, "completed", False, P.FINISHED),  # the watchdog has not looked at it again
        (LEGACY, "scheduled", False, P.PENDING),
        (LEGACY, "started", False, P.RUNNING),
        (LEGACY, "scheduled", True, P.GIVEN_UP),
        (LEGACY, "started", True, P.GIVEN_UP),
        (NCCL2, "completed", True, P.FINISHED),
        (NCCL2, "scheduled", False, P.PENDING),
        (NCCL2, "scheduled", True, P.PENDING),
        (LAZY, "scheduled", False, P.PENDING),
        (GLOO, "scheduled", True, P.ENDED),
        (GLOO, "scheduled", False, P.PENDING),
        (COMMS, "completed", True, P.FINISHED),
        (COMMS, "scheduled", True, P.PENDING),
        (OTHER, "scheduled", True, P.UNKNOWN),
        (OTHER, "scheduled", False, P.UNKNOWN),
        (Backend.UNKNOWN, "completed", True, P.FINISHED),
    ],
)
def test_progress(backend: Backend, state: str, retired: bool, expected: Progress) -> None:
    entry = Entry(
        record=0,
        pg_id=0,
        group=GroupName("0"),
        operation=Operation("all_reduce"),
        state=State(state),
        retired=retired,
    )
    assert progress(entry, backend) is expected


def test_every_backend_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Backend)


def test_who_writes_and_what_is_counted() -> None:
    assert MEANINGS[LEGACY].writes is Writes.ALL
    assert MEANINGS[NCCL2].writes is Writes.DETECTING
    assert MEANINGS[GLOO].writes is MEANINGS[LAZY].writes is Writes.NEVER
    assert MEANINGS[LEGACY].counting is Counting.COLLECTIVES
    assert MEANINGS[NCCL2].counting is Counting.OPERATIONS
    assert not MEANINGS[GLOO].group_ranks
    assert not MEANINGS[COMMS].sequence_per_group
