"""A call too many beside calls left out: who left the common path, and in which way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence
from keepstep.diagnosis.history import signature
from keepstep.diagnosis.verdict import Fault, Verdict
from keepstep.recorder.model import Backend, Direction, Operation
from tests.diagnosis.simulator import Call, Job, Recording

BARE = Recording(backend=Backend.NCCL2, stacks=False, everyone_writes=True)
RECORDINGS = [BARE, Recording(stacks=False), Recording()]


def steps(ranks: int, number: int = 6) -> Job:
    """Tensor groups of two, data groups of the rest; the host waits at the end of a step."""
    groups = {f"dp{n}": tuple(range(n, ranks, 2)) for n in range(2)}
    groups |= {f"tp{n}": (2 * n, 2 * n + 1) for n in range(ranks // 2)}

    def program(rank: int) -> Iterator[Call]:
        for _ in range(number):
            yield Call("all_reduce", f"tp{rank // 2}", line=10)
            yield Call("_all_gather_base", f"dp{rank % 2}", line=11)
            yield Call("all_reduce", line=12)
            yield Call("all_reduce", line=13, elements=1)
            yield Call("wait")

    return Job({rank: list(program(rank)) for rank in range(ranks)}, groups)


def judge(job: Job, recording: Recording) -> Verdict:
    job.run()
    return diagnose(Evidence(dumps=job.dumps(recording)))


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize(("line", "elements"), [(13, 1), (12, 1024), (13, 7)])
@pytest.mark.parametrize("culprit", [0, 3])
def test_a_call_too_many(recording: Recording, line: int, elements: int, culprit: int) -> None:
    """After a step or in it; equal to the call that it meets, or not."""
    job = steps(4)
    program = job.ranks[culprit].program
    at = 3 * 5 + (4 if line == 13 else 2)  # in the fourth step: behind the loss, before gradients
    program.insert(at, Call("all_reduce", line=40, elements=elements))
    verdict = judge(job, recording)
    assert verdict.ranks == (culprit,), verdict.headline
    if line == 12 and not recording.stacks:  # then it may as well be one call in place of another
        assert verdict.fault in (Fault.EXTRA_COLLECTIVE, Fault.MISMATCH), verdict.headline
    else:
        assert verdict.fault is Fault.EXTRA_COLLECTIVE, verdict.headline


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("left_out", [0, 1])
@pytest.mark.parametrize("culprit", [0, 3])
def test_a_call_left_out_is_none_too_many(
    recording: Recording, left_out: int, culprit: int
) -> None:
    job = steps(4)
    del job.ranks[culprit].program[3 * 5 + left_out]
    verdict = judge(job, recording)
    assert verdict.ranks == (culprit,), verdict.headline
    assert verdict.fault is Fault.MISMATCH, verdict.headline


@pytest.mark.parametrize("stopped", [0, 1, 2, 3])
def test_ranks_that_are_merely_ahead_are_not_accused(stopped: int) -> None:
    job = steps(4)
    job.ranks[stopped].stop_before = 3 * 5 + 2
    verdict = judge(job, BARE)
    assert (verdict.ranks, verdict.fault) == ((stopped,), Fault.STALLED)


def test_a_send_and_its_receive_fit_where_only_one_side_of_each_is_recorded() -> None:
    """nccl2 writes the inputs of a send and the outputs of a receive."""
    send = Operation("send", ((1024,),), ("Float",), direction=Direction.SEND)
    receive = Operation(
        "recv",
        output_sizes=((1024,),),
        output_dtypes=("Float",),
        direction=Direction.RECEIVE,
    )
    assert signature(send)[1:] == signature(receive)[1:] == (1024, ("Float",))
