"""A coordinator that dies at any moment: the next one takes up the job and it goes on."""

from __future__ import annotations

import json

import pytest

from keepstep.runtime import journal
from keepstep.runtime import protocol as p
from keepstep.runtime.membership import Membership
from keepstep.runtime.roster import Phase
from keepstep.runtime.settings import Settings
from tests.runtime.test_simulated_job import SimulatedJob, one_host, several_hosts


def completed(sim: SimulatedJob) -> SimulatedJob:
    sim.until_over()
    assert sim.abort is None, sim.abort
    assert sim.job.outcome == "completed"
    assert sim.job.final_digest == f"init:{sim.steps}"
    return sim


def die_before_sending(sim: SimulatedJob, kind: type[p.Message], *, after: int = 0) -> None:
    """Have the coordinator die once, after the journal and before the order is sent."""
    seen = 0

    def interrupt(message: p.Message) -> bool:
        nonlocal seen
        if isinstance(message, kind):
            seen += 1
            if seen == after + 1:
                sim.crash_coordinator()
                return True
        return False

    sim.interrupt = interrupt


def test_a_journal_is_json_and_gives_an_equal_job() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1, snapshots_every=4)
    sim.until_step(6)
    sim.kill(0)
    sim.until_step(9)
    record = json.loads(json.dumps(journal.to_record(sim.job)))
    again = journal.to_record(journal.from_record(record, sim.now))
    again["plain"]["coordinator_restarts"] -= 1
    assert json.loads(json.dumps(again)) == record


@pytest.mark.parametrize("step", [1, 5, 19])
def test_training_goes_on_while_the_coordinator_is_away(step: int) -> None:
    sim = one_host()
    sim.until_step(step)
    sim.crash_coordinator()
    before = sim.worker(0).committed
    sim.rounds(1)
    assert sim.worker(0).committed == before + 1
    sim.restart_coordinator()
    completed(sim)
    assert len(sim.forms) == 1
    assert sim.job.recoveries.coordinator_restarts == 1


def test_a_restart_while_the_job_gathers() -> None:
    sim = one_host(starting_allowed=False)
    sim.restart_coordinator()
    sim.starting_allowed = True
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1]]


def test_a_restart_while_survivors_leave_their_step() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.worker(2).hung = True  # keeps the change open
    sim.kill(1)
    sim.rounds(2)
    assert sim.job.phase is Phase.HALTING
    sim.restart_coordinator()
    completed(sim)
    assert len(sim.forms) == 2
    assert sim.forms[1].start_step == 5


def test_a_restart_while_a_generation_forms() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.held = {2}
    sim.kill(1)
    sim.until_phase(Phase.FORMING)
    sim.rounds(2)
    sim.restart_coordinator()
    sim.held = set()
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 2]
    assert sim.forms[-1].start_step >= 5


def test_a_restart_while_the_first_generation_forms() -> None:
    sim = one_host(workers=3, spares=1)
    sim.held = {0, 1, 2}
    sim.until_phase(Phase.FORMING)
    sim.rounds(1)
    sim.restart_coordinator()
    sim.held = set()
    completed(sim)


def test_a_restart_while_the_first_generation_forms_from_different_states() -> None:
    sim = one_host(workers=3, spares=1, seeded=False)
    sim.held = {0, 1, 2}
    sim.until_phase(Phase.FORMING)
    sim.rounds(1)
    sim.restart_coordinator()
    sim.held = set()
    sim.until_over()
    assert sim.abort is None, sim.abort


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("rounds", [2, 6])
def test_steps_that_were_done_before_the_first_generation_was_known_to_live_are_kept(
    hosts: int, rounds: int
) -> None:
    sim = several_hosts(hosts, workers=2, spares=1, steps=30)
    sim.held = set(range(100))
    sim.until_phase(Phase.FORMING)
    sim.crash_coordinator()
    sim.held = set()
    sim.rounds(rounds)
    reached = sim.worker(0).committed
    assert reached > 0
    sim.restart_coordinator()
    completed(sim)
    assert all(form.start_step >= reached for form in sim.forms[1:])


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("kind", [p.Halt, p.Form, p.Launch, p.Fence])
def test_an_order_that_was_decided_and_not_sent_is_carried_out_after_the_restart(
    kind: type[p.Message], after: int
) -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.until_step(5)
    die_before_sending(sim, kind, after=after)
    sim.worker(1).hung = True
    sim.until(lambda: not sim.coordinator_up or sim.finished)
    if not sim.coordinator_up:
        sim.rounds(2)
        sim.restart_coordinator()
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 2]


def test_an_exit_that_was_not_heard_is_told_again() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.crash_coordinator()
    sim.kill(1)
    sim.rounds(2)
    sim.restart_coordinator()
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 2]
    assert [entry.fault for entry in sim.job.recoveries.entries] == ["kill"]


def test_a_job_that_ended_its_steps_while_the_coordinator_was_away_finishes() -> None:
    sim = one_host(steps=8)
    sim.until_step(5)
    sim.crash_coordinator()
    sim.rounds(10)
    assert all(worker.doing == "done" for worker in sim.members)
    sim.restart_coordinator()
    completed(sim)


def test_a_finish_that_was_decided_and_not_sent_is_sent_after_the_restart() -> None:
    sim = one_host(steps=8)
    die_before_sending(sim, p.Finish)
    sim.until(lambda: not sim.coordinator_up)
    sim.restart_coordinator()
    sim.rounds(5)
    assert sim.finished


def test_an_abort_that_was_decided_and_not_sent_is_sent_after_the_restart() -> None:
    sim = one_host(settings={"max_recoveries": 0})
    sim.until_step(5)
    die_before_sending(sim, p.Abort)
    sim.kill(1)
    sim.until(lambda: not sim.coordinator_up)
    sim.restart_coordinator()
    sim.rounds(5)
    assert sim.abort is not None
    assert sim.abort.code == 1


def test_a_recovery_that_ended_while_the_coordinator_was_away_is_closed() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.held = {0, 2}
    sim.kill(1)
    sim.until_phase(Phase.FORMING)
    sim.crash_coordinator()
    sim.held = set()
    sim.rounds(2)
    sim.restart_coordinator()
    completed(sim)
    assert sim.job.recoveries.entries[0].resumed is not None


def test_the_mirror_of_a_lost_host_is_remembered() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(1)  # host0's spare, so that the change has to wait
    sim.lose_host("host1")
    sim.until(lambda: any(e["event"] == "waiting_for_spare" for e in sim.events))
    sim.kill(4, "exit", 1)  # a process that was starting: something new for the journal
    sim.rounds(1)
    sim.restart_coordinator()
    sim.starting_allowed = True
    completed(sim)
    assert sim.forms[-1].rank_state["1"][0] == "host0:1"


def test_a_shrinking_job_that_has_a_spare_does_not_shrink_because_of_a_restart() -> None:
    sim = one_host(workers=3, spares=1, settings={"on_loss": "shrink"})
    sim.until_step(5)
    sim.worker(2).hung = True  # keeps the change open
    sim.kill(1)
    sim.rounds(2)
    sim.worker(2).hung = False
    assert sim.worker(2).doing == "training"
    sim.crash_coordinator()
    sim.halt(sim.worker(2), p.Halt(generation=2, wids=[2]))
    sim.restart_coordinator()
    completed(sim)
    assert sim.forms[1].members == [0, 3, 2]


def test_a_silent_agent_gets_a_full_lease_from_the_new_coordinator() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    sim.lose_host("host1")
    sim.rounds(10)
    sim.restart_coordinator()
    sim.rounds(int(sim.job.times.lease / 0.1) - 2)
    assert "host1" in sim.job.agents
    sim.rounds(10)
    assert "host1" not in sim.job.agents


@pytest.mark.parametrize("restart", [False, True])
def test_an_agent_may_go_on_for_the_lease_that_it_had_before_steps_became_fast(
    restart: bool,
) -> None:
    job = Membership(settings=Settings(workers=1, spares=0), store="store:1")
    hello = p.Hello(agent="host0", host="h", sent=0.0, address="h:1", workers=1, spares=0, wids=[])
    job.step_seconds = [2.0] * 64
    job.on_hello(hello, 100.0)
    granted = job.times.lease
    job.step_seconds = [0.01] * 64
    job.on_message("host0", p.Beat(sent=0.0, workers=[]), 100.0)
    assert job.times.lease < granted
    if restart:
        job = journal.from_record(json.loads(json.dumps(journal.to_record(job))), 100.0)
    now = 100.0
    while "host0" in job.agents:
        now += 0.25
        job.tick(now)
        assert now < 1000.0
    assert now > 100.0 + granted


def test_a_coordinator_that_was_held_up_hears_its_agents_before_it_gives_them_up() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    before = len(sim.forms)
    later = sim.now + 100.0
    sim.job.tick(later)
    for name in sim.agents:
        sim.job.on_message(name, p.Beat(sent=later, workers=[]), later)
    sim.job.tick(later + 0.1)
    assert list(sim.job.agents) == ["host0", "host1"]
    assert len(sim.forms) == before


def test_snapshots_that_were_taken_while_the_coordinator_was_away_can_be_gone_back_to() -> None:
    sim = one_host(workers=2, spares=1, steps=60, snapshots_every=4)
    sim.until_step(6)
    sim.crash_coordinator()
    sim.until_step(21)
    sim.restart_coordinator()
    newest = sim.job.snapshots.newest()
    assert newest is not None
    assert newest.committed == 20
    completed(sim)


def test_snapshots_of_steps_that_are_repeated_are_not_told_again() -> None:
    sim = one_host(workers=3, spares=1, steps=60, snapshots_every=4)
    sim.until_step(10)
    worker = sim.worker(1)
    worker.base = "flipped"
    sim.until(lambda: len(sim.forms) == 2 and sim.job.phase is Phase.LIVE)
    assert sim.forms[1].source == "snapshot"
    before = len(sim.forms)
    sim.restart_coordinator()
    completed(sim)
    assert len(sim.forms) == before


def test_restarts_all_the_time_cost_nothing() -> None:
    sim = several_hosts(hosts=2, workers=2, spares=1, steps=40)
    for _ in range(200):
        if sim.finished:
            break
        sim.rounds(1)
        sim.restart_coordinator()
    completed(sim)
    assert sim.job.recoveries.count == 0
