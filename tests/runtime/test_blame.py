"""A stall that progress cannot explain, and a diagnosis that names a rank: it is replaced."""

from __future__ import annotations

import pytest

from keepstep.runtime import protocol as p
from keepstep.runtime import watch
from keepstep.runtime.detect import Suspicion
from tests.runtime.test_simulated_job import SimulatedJob, one_host

EVIDENCE = "all 3 ranks wait at the same place since 3.0 s"


def stall(sim: SimulatedJob) -> None:
    """All members wait and nobody can be named."""
    suspicion = Suspicion(wid=None, fault="unknown", age=3.0, evidence=EVIDENCE)
    watch.on_suspicion(sim.job, suspicion, sim.job.start_or_committed())
    sim.pump()


def incident(sim: SimulatedJob) -> str:
    return [message.name for _, message in sim.sent if isinstance(message, p.Incident)][-1]


def judged(sim: SimulatedJob, ranks: list[int], fault: str, outcome: str = "culprit") -> None:
    message = p.Judged(
        incident=incident(sim),
        folder="folder",
        outcome=outcome,
        ranks=ranks,
        fault=fault,
        headline=f"ranks {ranks}: {fault}",
        seconds=0.5,
    )
    sim.say("host0", message)
    sim.pump()


def members(sim: SimulatedJob) -> list[list[int]]:
    return [form.members for form in sim.forms]


def recoveries(sim: SimulatedJob) -> list[tuple[str, str, int | None]]:
    return [(entry.fault, entry.action, entry.rank) for entry in sim.job.recoveries.entries]


def finish(sim: SimulatedJob) -> None:
    sim.until_over()
    assert sim.job.outcome == "completed"
    assert sim.job.final_digest == f"init:{sim.steps}"


@pytest.mark.parametrize(("said", "fault"), [("device", "device"), ("stalled", "hang")])
def test_the_named_rank_gives_its_place_to_a_spare_at_a_step_boundary(
    said: str, fault: str
) -> None:
    sim = one_host(workers=3, spares=1, steps=40)
    sim.until_step(5)
    stall(sim)
    sim.until_step(8)
    assert members(sim) == [[0, 1, 2], [0, 1, 2]]
    judged(sim, [1], said)
    finish(sim)
    assert members(sim)[2:] == [[0, 3, 2]]
    assert recoveries(sim) == [("unknown", "retry", None), (fault, "replace", 1)]
    assert sim.job.recoveries.entries[1].lost_steps == 0


def test_without_a_spare_it_waits_for_one() -> None:
    sim = one_host(workers=3, spares=1, steps=400)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(0)
    sim.until_step(6)
    stall(sim)
    sim.until_step(8)
    judged(sim, [1], "device")
    sim.until_step(12)
    assert len(sim.forms) == 3
    sim.starting_allowed = True
    finish(sim)
    assert members(sim)[3:] == [[3, 4, 2]]


def test_if_the_job_stalls_again_before_that_it_is_fenced_at_once() -> None:
    sim = one_host(workers=3, spares=1, steps=40)
    sim.until_step(5)
    stall(sim)
    sim.until_step(6)
    sim.job.blamed[1] = ("device", "rank 1 never completed it")
    stall(sim)
    finish(sim)
    assert members(sim)[2:] == [[0, 3, 2]]
    assert recoveries(sim)[1] == ("device", "replace", 1)


@pytest.mark.parametrize(
    ("ranks", "fault", "outcome"),
    [
        ([1], "extra_collective", "culprit"),  # the program: another process would do the same
        ([], "deadlock", "no_rank"),
        ([], "", "unknown"),
    ],
)
def test_what_a_new_process_does_not_cure_changes_nothing(
    ranks: list[int], fault: str, outcome: str
) -> None:
    sim = one_host(workers=3, spares=1, steps=40)
    sim.until_step(5)
    stall(sim)
    sim.until_step(8)
    judged(sim, ranks, fault, outcome)
    finish(sim)
    assert members(sim) == [[0, 1, 2], [0, 1, 2]]


def test_a_verdict_on_a_rank_that_was_replaced_already_changes_nothing() -> None:
    sim = one_host(workers=3, spares=1, steps=40)
    sim.until_step(5)
    sim.kill(1)
    sim.until_step(8)
    judged(sim, [1], "stalled")
    finish(sim)
    assert members(sim) == [[0, 1, 2], [0, 3, 2]]


def test_a_blamed_member_that_dies_first_is_one_loss() -> None:
    sim = one_host(workers=3, spares=1, steps=40)
    sim.until_step(5)
    stall(sim)
    sim.until_step(8)
    sim.job.blamed[1] = ("device", "rank 1 never completed it")
    sim.kill(1)
    finish(sim)
    assert members(sim)[2:] == [[0, 3, 2]]
    assert len(sim.job.recoveries.entries) == 2
