"""Faults of every kind in a simulated job: what is decided, and that the job goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keepstep.runtime import journal
from keepstep.runtime import protocol as p
from keepstep.runtime.changes import on_difference
from keepstep.runtime.exits import START_FAILURES
from keepstep.runtime.forming import CRASH_LOOP
from keepstep.runtime.membership import Membership
from keepstep.runtime.reports import SLOWEST, TOLD_APART, tell_slowest
from keepstep.runtime.roster import Phase
from keepstep.runtime.summary import summarise
from tests.runtime.test_simulated_job import SimulatedJob, one_host, several_hosts


def completed(sim: SimulatedJob) -> SimulatedJob:
    """Let the job run to its end and return it; it must have done every step."""
    sim.until_over()
    assert sim.abort is None, sim.abort
    assert sim.job.outcome == "completed"
    assert sim.job.final_digest == f"init:{sim.steps}"
    return sim


def aborted(sim: SimulatedJob) -> p.Abort:
    """Let the job run to its failure and return why."""
    sim.until_over()
    assert sim.abort is not None
    assert sim.job.phase is Phase.ENDED
    assert (sim.job.outcome, sim.job.exit_code) == ("failed", sim.abort.code)
    return sim.abort


def fault_names(sim: SimulatedJob) -> list[tuple[str, str]]:
    return [(entry.fault, entry.action) for entry in sim.job.recoveries.entries]


def orders(sim: SimulatedJob, kind: type[p.Message]) -> list[p.Message]:
    return [message for _, message in sim.sent if isinstance(message, kind)]


# --- a lost member --------------------------------------------------------------------------------


def test_a_killed_member_is_replaced_by_the_spare_in_its_place_on_the_same_step() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.kill(1)
    completed(sim)
    first, second = sim.forms
    assert (first.members, second.members) == ([0, 1, 2], [0, 3, 2])
    assert (second.source, second.start_step, second.receivers) == ("live", 5, [3])
    assert [wid for wid, _ in second.donors] == [0, 2]
    assert second.rank_state == {"1": ["host0:1", "rank/1/5"]}
    assert fault_names(sim) == [("kill", "replace")]


def test_the_job_goes_on_from_the_most_advanced_survivor() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.commit(sim.worker(2))
    sim.worker(0).entry = sim.worker(1).entry = 6
    sim.kill(1)
    completed(sim)
    assert (sim.forms[1].start_step, sim.forms[1].receivers) == (6, [0, 3])
    assert sim.forms[1].rank_state == {
        "0": ["host0:1", "rank/0/6"],
        "1": ["host0:1", "rank/1/6"],
    }


def repeating(flipped: int = -1, held: int = 3) -> SimulatedJob:
    """Return a job that repeats a step, in which all but the worker ``held`` hold its state.

    Of three worker 1 is lost, and of the two left worker 2 alone had completed the step.
    """
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.repeatable = True
    sim.until_step(5)
    sim.commit(sim.worker(2))
    sim.worker(0).entry = sim.worker(1).entry = 6
    if flipped >= 0:
        sim.worker(flipped).base = "flipped"
    sim.held = {held}
    sim.kill(1)
    sim.until(lambda: len(told(sim, "member_formed")) == 5)
    return sim


def told(sim: SimulatedJob, event: str) -> list[dict[str, Any]]:
    return [each for each in sim.events if each["event"] == event]


@pytest.mark.parametrize("restart", [False, True])
def test_the_step_that_one_of_two_survivors_alone_completed_is_repeated_and_proven(
    restart: bool,
) -> None:
    sim = repeating()
    if restart:
        sim.restart_coordinator()
    sim.held = set()
    completed(sim)
    for form in sim.forms[1:]:
        assert (form.source, form.start_step, form.prove) == ("live", 5, True)
    assert sim.forms[1].receivers == [3, 2]
    assert [each["step"] for each in told(sim, "proven")] == [6]
    assert sim.job.recoveries.entries[0].lost_steps == 1
    assert sim.job.proof is None


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("flipped", [0, 2])
def test_where_the_repetition_ends_in_another_state_all_go_back_to_the_snapshot(
    flipped: int, restart: bool
) -> None:
    sim = repeating(flipped)
    if restart:
        sim.restart_coordinator()
    sim.held = set()
    completed(sim)
    starts = dict.fromkeys((form.source, form.start_step) for form in sim.forms[1:])
    assert list(starts) == [("live", 5), ("snapshot", 4)]
    assert sim.forms[-1].digest == "init:4"
    assert fault_names(sim) == [("kill", "replace"), ("corrupt", "retry")]
    assert "another state" in told(sim, "replicas_differ")[0]["repeated"]


@pytest.mark.parametrize("flipped", [0, 2])
def test_who_never_came_to_the_repetition_does_not_prove_what_it_said(flipped: int) -> None:
    sim = one_host(workers=3, spares=2, snapshots_every=4)
    sim.repeatable = True
    sim.until_step(5)
    sim.commit(sim.worker(2))
    sim.worker(0).entry = sim.worker(1).entry = 6
    sim.worker(flipped).base = "flipped"
    sim.held = {0, 2, 3}  # nobody gets through forming, so worker 2 keeps its state
    sim.kill(1)
    sim.until(lambda: len(sim.forms) == 2)
    sim.kill(3)
    sim.until(lambda: len(sim.forms) == 3)
    sim.held = set()
    completed(sim)
    assert [form.source for form in sim.forms[1:]] == ["live", "live", "snapshot"]
    assert sim.forms[-1].digest == "init:4"


@pytest.mark.parametrize("flipped", [-1, 0, 2])
def test_a_proof_that_is_told_while_the_coordinator_is_away_is_told_again(flipped: int) -> None:
    sim = repeating(flipped)
    sim.held = set()
    sim.crash_coordinator()
    sim.rounds(3)
    assert sim.worker(3).committed > 6
    sim.restart_coordinator()
    completed(sim)
    assert len(told(sim, "proven")) == (flipped < 0)
    assert ("snapshot" in {form.source for form in sim.forms}) == (flipped >= 0)


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("flipped", [0, 2])
def test_a_loss_before_the_repeated_step_is_complete_does_not_save_a_flipped_state(
    flipped: int, victim: int
) -> None:
    sim = repeating(flipped, held=victim)
    sim.kill(victim)
    completed(sim)
    assert [form.source for form in sim.forms[1:]] == ["live", "live", "snapshot"]
    assert sim.forms[-1].digest == "init:4"


def test_a_rank_record_that_is_not_there_costs_the_way_back_to_the_snapshot() -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.records_missing = True
    sim.until_step(7)
    sim.kill(1)
    completed(sim)
    assert [(form.source, form.start_step) for form in sim.forms[1:]] == [
        ("live", 7),
        ("snapshot", 4),
    ]
    assert "not there any more" in told(sim, "back_to_snapshot")[0]["why"]


def test_a_snapshot_that_is_not_there_is_forgotten_for_an_older_one() -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.records_missing = True
    sim.snapshots_missing = {8}
    sim.until_step(10)
    sim.kill(1)
    completed(sim)
    starts = [(form.source, form.start_step) for form in sim.forms[1:]]
    assert starts == [("live", 10), ("snapshot", 8), ("snapshot", 4)]


def test_where_no_snapshot_is_there_any_more_the_job_ends_and_says_so() -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.records_missing = True
    sim.snapshots_missing = {0, 4, 8}
    sim.until_step(10)
    sim.kill(1)
    assert "no common snapshot" in aborted(sim).why


def test_a_process_whose_script_raises_on_its_way_in_is_replaced_and_its_error_is_told() -> None:
    sim = one_host(workers=3, spares=2)
    sim.raising_on_entry = {3}
    sim.until_step(5)
    sim.kill(1)
    completed(sim)
    assert sim.forms[-1].members == [0, 4, 2]
    assert fault_names(sim) == [("kill", "replace"), ("raise", "replace")]


def test_a_script_that_raises_in_every_new_process_ends_the_job_with_its_error() -> None:
    sim = one_host(workers=3, spares=2)
    sim.raising_on_entry = set(range(3, 99))
    sim.until_step(5)
    sim.kill(1)
    assert "ValueError: cannot load" in aborted(sim).why


def test_where_all_ranks_are_stopped_at_once_each_is_lost_at_the_step_that_it_was_in() -> None:
    sim = one_host(workers=3, spares=3, snapshots_every=4)
    sim.until_step(7)
    for wid in (0, 1, 2):
        sim.kill(wid)
    completed(sim)
    assert [entry.step for entry in sim.job.recoveries.entries] == [7, 7, 7]
    assert [entry.lost_steps for entry in sim.job.recoveries.entries] == [3, 3, 3]


def test_a_snapshot_for_which_there_is_no_room_is_told_once_and_no_fault() -> None:
    sim = one_host(workers=2, spares=0)
    sim.until_step(3)
    for step in (10, 20):
        left = p.SnapshotLeftOut(wid=0, committed=step, folder="/dev/shm/x", why="No space left")
        sim.say("host0", left)
    completed(sim)
    assert [each["step"] for each in told(sim, "snapshot_left_out")] == [10]
    assert fault_names(sim) == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("is_told", [False, True])
def test_an_entry_does_not_stand_in_where_per_rank_state_was_seen_to_change_later(
    is_told: bool, restart: bool
) -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.until_step(6)
    if is_told:
        sim.say("host0", p.ChangedLate(wid=0, step=3))
        sim.pump()
    if restart:
        sim.restart_coordinator()
    for wid in (0, 2):
        sim.commit(sim.worker(wid))
    sim.worker(1).entry = 7
    sim.kill(1)
    completed(sim)
    wanted = ("snapshot", 4) if is_told else ("live", 7)
    assert (sim.forms[1].source, sim.forms[1].start_step) == wanted
    assert len(told(sim, "changed_late")) == is_told


def test_a_lost_member_that_left_too_little_sends_all_back_to_the_snapshot() -> None:
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.until_step(7)
    sim.commit(sim.worker(2))
    sim.worker(0).entry = 8
    sim.kill(1)
    completed(sim)
    second = sim.forms[1]
    assert (second.source, second.start_step, second.receivers) == ("snapshot", 4, [0, 3, 2])
    assert second.rank_state["1"] == ["host0:1", "snapshot/4/rank/1"]
    assert sim.job.recoveries.entries[0].lost_steps == 4


def test_a_new_spare_is_started_for_the_one_that_got_a_rank() -> None:
    sim = one_host(workers=2, spares=1, steps=60)
    for step, victim in ((5, 0), (15, 1), (25, 2)):
        sim.until_step(step)
        sim.kill(victim)
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1], [2, 1], [2, 3], [4, 3]]


def test_two_members_lost_at_once_are_one_change() -> None:
    sim = one_host(workers=4, spares=2)
    sim.until_step(5)
    sim.kill(1)
    sim.kill(2)
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1, 2, 3], [0, 4, 5, 3]]
    assert sim.job.recoveries.count == 2


def test_two_members_lost_with_one_spare_wait_for_the_starting_process() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.kill(1)
    sim.kill(2)
    completed(sim)
    assert len(sim.forms) == 2
    assert sim.forms[1].members[1:] == [3, 4]


def test_all_members_lost_at_once_go_back_to_the_snapshot() -> None:
    sim = one_host(workers=2, spares=2, snapshots_every=4)
    sim.until_step(6)
    sim.kill(0)
    sim.kill(1)
    completed(sim)
    assert (sim.forms[1].source, sim.forms[1].start_step) == ("snapshot", 4)


def test_a_hung_member_is_named_fenced_and_replaced() -> None:
    sim = one_host(workers=3, spares=1)
    sim.until_step(5)
    sim.worker(1).hung = True
    completed(sim)
    assert [m.wid for m in orders(sim, p.Fence) if isinstance(m, p.Fence)] == [1]
    assert fault_names(sim) == [("hang", "replace")]
    assert sim.forms[1].members == [0, 3, 2]


def test_a_survivor_that_does_not_leave_its_step_is_fenced_as_well() -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    sim.kill(1)
    sim.worker(2).hung = True
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 4]
    assert ("hang", "replace") in fault_names(sim)


def test_broken_connections_without_a_lost_process_are_a_retry_with_the_same_members() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    for worker in sim.members:
        sim.fail_step(worker, "collective", dirty=False)
    completed(sim)
    assert fault_names(sim) == [("network", "retry")]
    assert [form.members for form in sim.forms] == [[0, 1], [0, 1]]


def test_a_lost_spare_is_noted_and_started_again_while_the_job_goes_on() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.kill(2)
    completed(sim)
    assert len(sim.forms) == 1
    assert sim.job.recoveries.spares_lost == 1
    assert 3 in sim.job.workers


# --- during a change ------------------------------------------------------------------------------


def forming(sim: SimulatedJob, held: set[int]) -> SimulatedJob:
    """Have ``held`` not get through the second forming."""
    sim.until_step(5)
    sim.held = held
    sim.kill(1)
    sim.until_phase(Phase.FORMING)
    sim.rounds(2)
    assert sim.job.phase is Phase.FORMING
    sim.held = set()
    return sim


def test_a_member_lost_during_forming_is_replaced_too() -> None:
    sim = forming(one_host(workers=3, spares=2), held={0})
    sim.kill(2)
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 4]
    assert sim.forms[-1].start_step == 5


def test_who_waits_for_a_member_lost_during_forming_is_not_fenced_with_it() -> None:
    # Nothing ends the wait for the lost peer before the limit of the reconfiguration. All of that
    # must not count as a hang: the states of all survivors would be lost.
    sim = forming(one_host(workers=3, spares=3), held={0, 2, 3})
    waiting = [sim.worker(0), sim.worker(3)]
    for worker in waiting:
        worker.hung = True
    times, began = sim.job.times, sim.job.form_began
    sim.kill(2)
    sim.until(lambda: sim.now > began + times.form + times.patience)
    assert all(worker.alive for worker in waiting)
    sim.until(lambda: not any(worker.alive for worker in waiting))
    assert sim.now > began + times.form + times.leave_step
    assert sim.now < began + times.form + times.leave_step + times.patience


def test_a_spare_that_never_was_a_member_does_not_pass_for_a_survivor() -> None:
    # Every member of the last whole generation is lost; what is left are newcomers that were on
    # their way in. What they built is not what was trained.
    sim = one_host(workers=2, spares=3, snapshots_every=4)
    sim.until_step(6)
    sim.held = {0, 2, 3}
    sim.kill(1)
    sim.until_phase(Phase.FORMING)
    sim.kill(0)
    sim.until_phase(Phase.FORMING)
    sim.held = set()
    completed(sim)
    assert sim.forms[-1].source == "snapshot"
    assert sim.forms[-1].start_step == 4


def test_a_spare_lost_during_forming_costs_no_step() -> None:
    sim = forming(one_host(workers=3, spares=2), held={3})
    sim.kill(3)
    completed(sim)
    assert sim.forms[-1].members == [0, 4, 2]
    assert (sim.forms[-1].source, sim.forms[-1].start_step) == ("live", 5)
    assert sim.forms[-1].rank_state["1"] == ["host0:1", "rank/1/5"]


def test_a_spare_lost_during_forming_is_replaced() -> None:
    sim = forming(one_host(workers=3, spares=2), held={3})
    sim.kill(3)
    completed(sim)
    assert sim.forms[-1].members == [0, 4, 2]


def test_a_member_that_does_not_enter_in_time_is_fenced_and_replaced() -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    sim.kill(1)
    sim.worker(2).doing = "training"
    sim.held = {2}
    sim.until_phase(Phase.FORMING)
    sim.until(lambda: not sim.worker(2).alive, limit=1000)
    sim.held = set()
    completed(sim)
    assert sim.forms[-1].members == [0, 3, 4]


def test_a_member_lost_while_others_leave_their_step_is_part_of_the_same_change() -> None:
    sim = one_host(workers=4, spares=2)
    sim.until_step(5)
    sim.worker(3).hung = True  # keeps the change open
    sim.kill(1)
    sim.until_phase(Phase.HALTING)
    sim.kill(2)
    sim.rounds(1)
    assert sim.job.phase is Phase.HALTING
    completed(sim)
    assert len(sim.forms) == 2
    assert sorted(sim.forms[1].members) == [0, 4, 5, 6]


@pytest.mark.parametrize("seeded", [True, False])
def test_a_member_lost_while_the_first_generation_forms_is_replaced(seeded: bool) -> None:
    sim = one_host(workers=3, spares=1, seeded=seeded)
    sim.held = {0, 1, 2}
    sim.until_phase(Phase.FORMING)
    sim.rounds(2)
    sim.kill(2)
    sim.held = set()
    sim.until_over()
    assert sim.abort is None, sim.abort
    assert sim.job.final_digest == ("init:20" if seeded else "init0:20")


@pytest.mark.parametrize("ready", [True, False])
def test_a_member_that_is_lost_before_the_first_generation_does_not_hang_the_job(
    ready: bool,
) -> None:
    sim = one_host(workers=2, spares=1, starting_allowed=False)
    if ready:
        sim.worker(0).ready = True
        sim.say("host0", p.Joined(wid=0, torch="2.15.0"))
        sim.say(
            "host0", p.Ready(wid=0, handle="h0", steps=20, digest="init:0", address="host0:5000")
        )
    sim.kill(0)
    sim.pump()
    sim.starting_allowed = True
    sim.until_over()
    assert sim.job.phase in (Phase.FINISHING, Phase.ENDED)


def test_a_host_lost_before_the_first_generation_does_not_hang_the_job() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1, starting_allowed=False)
    sim.lose_host("host1")
    sim.until(lambda: "host1" not in sim.job.agents)
    sim.starting_allowed = True
    sim.bring_back("host1")
    sim.until_over()
    assert sim.job.phase in (Phase.FINISHING, Phase.ENDED)


# --- what to do without a spare -------------------------------------------------------------------


def test_without_a_spare_a_shrinking_job_goes_on_smaller_and_grows_again() -> None:
    sim = one_host(workers=3, spares=0, steps=60, settings={"on_loss": "shrink"})
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(1)
    sim.until_step(10)
    assert sim.forms[-1].members == [0, 2]
    sim.starting_allowed = True
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1, 2], [0, 2], [0, 3, 2]]
    assert fault_names(sim) == [("kill", "shrink")]
    assert sim.forms[2].receivers == [3]
    assert sim.forms[2].start_step > sim.forms[1].start_step
    assert sim.job.recoveries.entries[0].full is not None


def test_a_growing_job_repeats_no_step() -> None:
    sim = one_host(workers=3, spares=0, steps=60, settings={"on_loss": "shrink"})
    sim.until_step(5)
    sim.kill(1)
    completed(sim)
    growth = next(event for event in sim.events if event["event"] == "growing")
    assert growth["ready"] == [3]
    assert sim.forms[2].source == "live"
    assert len([e for e in sim.events if e["event"] == "form" and e["lost_steps"]]) == 0


def test_a_loss_while_growth_is_planned_is_a_change_at_once() -> None:
    sim = one_host(workers=3, spares=0, steps=80, settings={"on_loss": "shrink"})
    sim.until_step(5)
    sim.kill(1)
    sim.until(lambda: any(event["event"] == "growing" for event in sim.events))
    assert sim.job.phase is Phase.HALTING
    sim.kill(2)
    completed(sim)
    assert len(sim.forms[-1].members) == 3


def test_a_job_does_not_grow_right_before_its_end() -> None:
    sim = one_host(workers=3, spares=0, steps=12, settings={"on_loss": "shrink"})
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(1)
    sim.until_step(11)
    sim.starting_allowed = True
    completed(sim)
    assert len(sim.forms[-1].members) == 2


def test_replace_waits_for_a_starting_process() -> None:
    sim = one_host(workers=2, spares=0)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(1)
    sim.rounds(50)
    assert sim.job.phase is Phase.HALTING
    assert [e["event"] for e in sim.events].count("waiting_for_spare") == 1
    sim.starting_allowed = True
    completed(sim)


def test_replace_does_not_wait_forever_for_a_starting_process() -> None:
    sim = one_host(workers=2, spares=0)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(1)
    sim.until(lambda: sim.abort is not None, limit=3500)
    assert aborted(sim).code == 1


def test_replace_without_any_starting_process_ends_the_job() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=0)
    sim.until_step(5)
    sim.lose_host("host1")
    abort = aborted(sim)
    assert abort.code == 1
    assert "--spares" in abort.why


def test_wait_waits_for_a_host_to_come_back() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=0, settings={"on_loss": "wait"})
    sim.until_step(5)
    sim.lose_host("host1")
    sim.rounds(100)
    assert sim.job.phase is Phase.HALTING
    sim.bring_back("host1")
    completed(sim)
    assert sim.forms[-1].members == [0, 2]


# --- steps that raise -----------------------------------------------------------------------------


def test_a_step_that_raises_is_repeated_with_the_same_members() -> None:
    sim = one_host(workers=2, spares=1)
    sim.raising = {5: False}
    sim.until(lambda: sim.job.recoveries.count == 1)
    sim.raising = {}
    completed(sim)
    assert fault_names(sim) == [("raise", "retry")]
    assert [form.members for form in sim.forms] == [[0, 1], [0, 1]]
    assert sim.forms[1].start_step == 5


def test_a_step_that_raises_twice_on_one_rank_costs_it_its_place() -> None:
    sim = one_host(workers=2, spares=1)
    sim.raising, sim.raised_on = {5: False}, {1}
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1], [0, 1], [0, 2]]


def test_the_book_says_that_a_rank_was_replaced_after_a_retry() -> None:
    sim = one_host(workers=2, spares=1)
    sim.raising, sim.raised_on = {5: False}, {1}
    completed(sim)
    assert ("raise", "replace") in fault_names(sim)


@pytest.mark.parametrize(("origin", "fault"), [("device", "device"), ("memory", "oom")])
def test_a_broken_device_costs_the_rank_its_place_at_once(origin: str, fault: str) -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.fail_step(sim.worker(1), origin, dirty=True)
    completed(sim)
    assert fault_names(sim) == [(fault, "replace")]
    assert sim.forms[-1].members == [0, 2]


def test_a_step_that_fails_with_every_generation_ends_the_job() -> None:
    sim = one_host(workers=2, spares=1)
    sim.raising = {5: False}
    abort = aborted(sim)
    assert abort.code == 1
    assert "step 5 failed" in abort.why
    assert len(sim.forms) <= CRASH_LOOP + 2


def test_a_process_that_dies_in_every_generation_at_one_step_ends_the_job() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    for _ in range(CRASH_LOOP + 2):
        if sim.abort is not None:
            break
        sim.kill(sim.members[0].wid)
        sim.held = {w.wid for w in sim.all_workers}
        sim.until(lambda: sim.abort is not None or sim.job.phase is Phase.FORMING)
        sim.held = set()
        sim.form_round()
        sim.pump()
    assert aborted(sim).code == 1


def test_a_step_that_always_fails_after_the_state_changed_ends_the_job() -> None:
    sim = one_host(workers=2, spares=1, snapshots_every=4)
    sim.until_step(5)
    sim.raising, sim.raised_on = {6: True}, set(range(1000))
    for _ in range(3000):
        if sim.abort is not None or len(sim.forms) > 20:
            break
        sim.round()
    assert sim.abort is not None, f"{len(sim.forms)} generations and no end"


def test_a_generation_that_can_never_be_formed_ends_the_job() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.held = set(range(1000))
    sim.kill(1)
    for _ in range(60):
        sim.until(lambda: sim.abort is not None or sim.job.phase is Phase.FORMING)
        if sim.abort is not None:
            break
        for worker in sim.members:
            if worker.form is not None:
                sim.fail_forming(worker, "CorruptStateError: no donor has the agreed state")
        sim.pump()
    assert sim.abort is not None, f"{len(sim.forms)} generations and no end"


def test_more_recoveries_than_allowed_end_the_job() -> None:
    sim = one_host(workers=2, spares=1, settings={"max_recoveries": 1})
    sim.until_step(5)
    sim.kill(1)
    sim.until_step(10)
    sim.kill(0)
    abort = aborted(sim)
    assert abort.code == 1
    assert "--max-recoveries" in abort.why


# --- scripts that do not work ---------------------------------------------------------------------


def test_a_script_that_never_joins_ends_the_job_as_a_usage_error() -> None:
    sim = one_host(workers=2, spares=1, starting_allowed=False)
    for _ in range(5):
        for worker in sim.all_workers:
            sim.kill(worker.wid, "exit", 0)
        sim.round()
    abort = aborted(sim)
    assert abort.code == 2
    assert "keepstep.join()" in abort.why


def test_a_script_that_dies_before_it_trains_ends_the_job() -> None:
    sim = one_host(workers=2, spares=1, starting_allowed=False)
    for _ in range(5):
        for worker in sim.all_workers:
            sim.kill(worker.wid, "exit", 1)
        sim.round()
    abort = aborted(sim)
    assert abort.code == 1
    assert "exit code 1" in abort.why


def test_spares_that_cannot_start_end_the_job_after_some_in_a_row() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(2)  # a ready spare
    for number in range(START_FAILURES):
        assert sim.abort is None
        sim.round()
        sim.kill(3 + number, "exit", 1)
    assert aborted(sim).code == 1


def test_processes_that_their_agent_fenced_while_they_started_do_not_count_against_the_script() -> (
    None
):
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.starting_allowed = False
    sim.kill(2)
    for number in range(START_FAILURES + 1):
        sim.round()
        sim.kill(3 + number, "fence")
    assert sim.abort is None
    sim.starting_allowed = True
    completed(sim)


# --- hosts ----------------------------------------------------------------------------------------


def test_workers_of_a_silent_host_are_replaced_after_its_lease() -> None:
    sim = several_hosts(hosts=3, workers=1, spares=1, steps=80)
    sim.until_step(5)
    lost_at = sim.now
    sim.lose_host("host1")
    sim.until(lambda: len(sim.forms) == 2)
    assert sim.now - lost_at > sim.job.times.lease
    assert sim.forms[1].members[1] in (1, 5)
    assert sim.forms[1].rank_state["1"] == ["host2:1", "rank/2/5"]
    completed(sim)
    assert ("partition", "replace") in fault_names(sim)


def test_a_host_that_is_back_within_its_lease_loses_nothing() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    sim.agents["host1"].connected = False
    sim.job.on_disconnect("host1", sim.now)
    sim.rounds(3)
    sim.hello("host1")
    completed(sim)
    assert len(sim.forms) == 1
    assert sim.job.recoveries.count == 0


def test_a_host_that_misses_the_halt_and_comes_back_takes_part() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    sim.agents["host1"].connected = False
    sim.job.on_disconnect("host1", sim.now)
    sim.kill(0)
    sim.rounds(3)
    assert sim.job.phase is Phase.HALTING
    sim.hello("host1")
    completed(sim)
    assert sim.forms[-1].members == [1, 2]


def test_a_host_that_misses_the_end_is_told_when_it_comes_back() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=0, steps=8)

    def lose_contact(message: p.Message) -> bool:
        if isinstance(message, p.Finish):
            sim.agents["host1"].connected = False
        return False

    sim.interrupt = lose_contact
    sim.until_over()
    sim.job.on_disconnect("host1", sim.now)
    sim.interrupt = lambda message: False
    sim.hello("host1")
    assert not any(worker.alive for worker in sim.agents["host1"].running.values())


def test_one_agent_more_than_allowed_is_sent_away() -> None:
    sim = one_host()
    hello = p.Hello(
        agent="more", host="more", sent=0.0, address="more:1", workers=2, spares=0, wids=[]
    )
    sim.job.on_hello(hello, sim.now)
    ((to, message),) = sim.job.outbox
    assert (to, type(message)) == ("more", p.Abort)


def test_the_record_of_a_lost_host_is_asked_of_its_mirror() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    assert sim.forms[0].mirrors == {"host1": ["host0:1", [0]], "host0": ["host1:1", [2]]}
    sim.lose_host("host1")
    completed(sim)
    assert [m.wids for m in orders(sim, p.Recall) if isinstance(m, p.Recall)] == [[2, 3]]
    assert {form.source for form in sim.forms} == {"live"}


def test_what_a_mirror_holds_of_an_earlier_generation_is_not_taken_for_the_last() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.snapshots_every = 2
    sim.mirrors_behind = 1
    sim.until_step(5)
    sim.lose_host("host1")
    completed(sim)
    assert [(form.source, form.start_step) for form in sim.forms[1:2]] == [("snapshot", 4)]


# --- the user ends the job ------------------------------------------------------------------------


def test_an_interrupted_job_says_what_it_did() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.kill(1)
    sim.until_step(7)
    sim.say("host0", p.Interrupted())
    sim.pump()
    found = summarise(sim.job)
    assert (found["outcome"], found["why"]) == ("interrupted", "interrupted")
    assert (found["steps"], len(found["recoveries"])) == (7, 1)
    assert sim.abort is not None
    assert sim.abort.code == 130


def test_a_job_that_is_interrupted_after_its_training_is_complete() -> None:
    sim = one_host(workers=2, spares=1, steps=8)
    sim.until_phase(Phase.FINISHING)
    sim.say("host0", p.Interrupted())
    sim.pump()
    found = summarise(sim.job)
    assert (found["outcome"], found["steps"]) == ("completed", 8)
    assert found["state_sha256"] == "init:8"


# --- replicas that differ -------------------------------------------------------------------------


def test_the_job_is_complete_only_when_all_are_done() -> None:
    sim = one_host(workers=2, spares=0, steps=8)
    sim.until_step(7)
    sim.commit(sim.worker(0))
    sim.pump()
    assert sim.job.phase is Phase.LIVE
    assert not sim.finished
    sim.commit(sim.worker(1))
    sim.pump()
    assert sim.finished


def test_a_minority_that_differs_at_the_end_is_replaced_and_all_go_back_to_the_snapshot() -> None:
    sim = one_host(workers=3, spares=1, steps=20, snapshots_every=6)
    sim.until_step(19)
    sim.worker(1).base = "flipped"
    completed(sim)
    assert sim.forms[1].members == [0, 3, 2]
    assert (sim.forms[1].source, sim.forms[1].start_step) == ("snapshot", 18)
    assert fault_names(sim) == [("corrupt", "replace")]


def test_two_that_differ_at_the_end_go_back_to_the_snapshot_and_nobody_is_accused() -> None:
    sim = one_host(workers=2, spares=1, steps=20, snapshots_every=6)
    sim.until_step(19)
    sim.worker(1).base = "flipped"
    completed(sim)
    assert sim.forms[1].members == [0, 1]
    assert (sim.forms[1].source, sim.forms[1].start_step) == ("snapshot", 18)
    assert fault_names(sim) == [("corrupt", "retry")]


@pytest.mark.parametrize("corrupt", [0, 1, 2])
def test_a_minority_that_differs_in_a_snapshot_is_replaced_whoever_reports_first(
    corrupt: int,
) -> None:
    sim = one_host(workers=3, spares=1, steps=20, snapshots_every=6)
    sim.until_step(11)
    sim.worker(corrupt).base = "flipped"
    completed(sim)
    assert fault_names(sim) == [("corrupt", "replace")]
    assert corrupt not in sim.forms[-1].members
    assert sim.forms[-1].start_step == 6


def test_a_difference_that_shows_during_a_recovery_costs_no_healthy_spare() -> None:
    sim = one_host(workers=4, spares=2, snapshots_every=4)
    sim.until_step(6)
    sim.worker(3).base = "flipped"
    sim.kill(0)
    completed(sim)
    assert sim.forms[-1].members == [4, 1, 2, 5]
    assert [m.wid for m in orders(sim, p.Fence) if isinstance(m, p.Fence)] == [3]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_loss_on_the_way_back_to_a_snapshot_does_not_revive_what_was_distrusted(
    workers: int, restart: bool
) -> None:
    """Who has not taken the snapshot yet still holds the state in which replicas differed."""
    sim = one_host(workers=workers, spares=3, steps=20, snapshots_every=6)
    sim.until_step(11)
    sim.worker(1).base = "flipped"
    sim.held = {0, 1, 2, 3, 4}
    sim.until(lambda: len(sim.forms) == 2)
    assert (sim.forms[1].source, sim.forms[1].start_step) == ("snapshot", 6)
    if restart:
        sim.restart_coordinator()
    sim.kill(next(wid for wid in sim.forms[1].members if wid != 0))
    sim.until(lambda: len(sim.forms) > 2)
    sim.held = set()
    completed(sim)
    assert {(form.source, form.start_step) for form in sim.forms[1:]} == {("snapshot", 6)}
    assert not sim.job.distrust


def test_a_snapshot_of_a_state_that_is_not_trusted_any_more_is_none() -> None:
    """Ranks go on until they hear that they are to stop."""
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.until_step(6)
    on_difference(sim.job, (), 6, repeated="step 6 was repeated and ended in another state")
    for worker in sim.members:
        sim.take_snapshot(worker)
    completed(sim)
    assert (sim.forms[1].source, sim.forms[1].start_step) == ("snapshot", 4)


def test_a_difference_is_counted_at_the_step_where_it_showed() -> None:
    """What is known of the members' progress is older than what a snapshot or the end has shown."""
    sim = one_host(workers=3, spares=1, snapshots_every=4)
    sim.until_step(7)
    for worker in sim.job.workers.values():
        worker.progress = None
    on_difference(sim.job, (1,), 12)
    assert sim.job.failures_at == {12: 1}


# --- failures of a process while its generation is being left -------------------------------------


def fail(sim: SimulatedJob, wid: int, origin: str) -> None:
    """The worker says that its step failed."""
    sim.fail_step(sim.worker(wid), origin, dirty=False)
    sim.pump()


@pytest.mark.parametrize(("origin", "fault"), [("memory", "oom"), ("device", "device")])
def test_a_process_that_is_of_no_use_is_replaced_though_another_loss_came_first(
    origin: str, fault: str
) -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    sim.worker(0).hung = True  # keeps the change open
    sim.kill(1)
    sim.pump()
    assert sim.job.phase is Phase.HALTING
    fail(sim, 2, origin)
    sim.worker(0).hung = False
    completed(sim)
    assert fault_names(sim)[:2] == [("kill", "replace"), (fault, "replace")]
    assert 2 not in sim.forms[-1].members


def test_a_step_that_raises_while_it_is_left_anyway_costs_nothing() -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    sim.worker(0).hung = True
    sim.kill(1)
    sim.pump()
    fail(sim, 2, "step")
    assert fault_names(sim) == [("kill", "replace")]


def test_a_step_that_raises_before_a_planned_boundary_is_a_change_at_once() -> None:
    sim = one_host(workers=3, spares=1, steps=200)
    slow_down(sim, 1)
    sim.until(lambda: sim.job.phase is Phase.HALTING)
    assert sim.job.change is not None
    assert sim.job.change.at_step is not None
    fail(sim, 2, "step")
    assert sim.job.phase is Phase.FORMING
    completed(sim)
    assert ("raise", "retry") in fault_names(sim)


def test_a_donor_that_twice_does_not_give_the_state_is_replaced() -> None:
    """Its process lives and is of no use; those who could not receive from it are."""
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    sim.held = {0, 2, 3, 4}
    sim.kill(1)
    for attempt in (1, 2):
        sim.until(lambda attempt=attempt: len(sim.forms) == 1 + attempt)  # type: ignore[misc]
        form = sim.forms[-1]
        newcomer = sim.worker(form.members[1])
        failed = p.FormFailed(
            wid=newcomer.wid,
            generation=form.generation,
            error="host0: timed out",
            handle=newcomer.handle,
            suspect=2,
        )
        newcomer.form, newcomer.doing = None, "waiting"
        sim.say("host0", failed)
        sim.pump()
    assert [m.wid for m in orders(sim, p.Fence) if isinstance(m, p.Fence)] == [2]
    sim.held = set()
    completed(sim)
    assert fault_names(sim) == [("kill", "replace"), ("hang", "replace")]
    assert sim.forms[-1].members == [0, 3, 4]
    assert not sim.job.suspected


# --- stragglers -----------------------------------------------------------------------------------


def slow_down(sim: SimulatedJob, wid: int) -> None:
    """From now on agents read that this worker makes the others wait."""
    plain: Callable[..., list[object]] = sim.progress

    def slowed(worker: object) -> list[object]:
        row = plain(worker)
        row[-1] = 0.09 if row[0] == wid else 0.01
        return row

    sim.progress = slowed  # type: ignore[method-assign]


def test_a_straggler_is_swapped_at_a_step_boundary_without_repeating_a_step() -> None:
    sim = one_host(workers=3, spares=1, steps=200)
    slow_down(sim, 1)
    sim.until(lambda: len(sim.forms) == 2)
    assert sim.forms[1].members == [0, 3, 2]
    assert (sim.forms[1].source, sim.forms[1].receivers) == ("live", [3])
    assert sim.forms[1].rank_state["1"] == ["host0:1", f"rank/1/{sim.forms[1].start_step}"]
    completed(sim)
    assert fault_names(sim) == [("slow", "replace")]


def test_a_straggler_stays_when_there_is_no_spare_or_little_left_to_do() -> None:
    for sim in (one_host(workers=3, spares=0, steps=60), one_host(workers=3, spares=1, steps=20)):
        slow_down(sim, 1)
        completed(sim)
        assert len(sim.forms) == 1


def test_a_straggler_that_dies_on_its_way_out_is_replaced_once() -> None:
    sim = one_host(workers=3, spares=1, steps=200)
    slow_down(sim, 1)
    sim.until_phase(Phase.HALTING)
    sim.kill(1)
    completed(sim)
    assert [form.members for form in sim.forms] == [[0, 1, 2], [0, 3, 2]]
    assert sim.job.recoveries.count == 1


# --- messages that should not come ----------------------------------------------------------------


def test_messages_of_unknown_agents_and_workers_change_nothing() -> None:
    sim = one_host()
    sim.until_step(5)
    before = journal.to_record(sim.job)
    sim.job.on_message(
        "nobody",
        p.Exited(wid=0, fault="kill", code=-9, committed=5, entry=5, ago=0.0, joined=True),
        sim.now,
    )
    sim.job.on_message("host0", p.Joined(wid=99, torch=""), sim.now)
    after = journal.to_record(sim.job)
    assert {**after, "agents": 0} == {**before, "agents": 0}


def test_a_lease_is_given_anew_only_after_half_the_time_between_two_beats() -> None:
    sim = one_host()
    sim.until_step(5)
    job, beat = sim.job, sim.job.times.beat
    start = sim.now + 10 * beat
    for later, granted in ((0.0, 1), (0.1 * beat, 0), (0.4 * beat, 0), (0.6 * beat, 1)):
        job.outbox.clear()
        job.on_message("host0", p.Beat(sent=7.0 + later, workers=[]), start + later)
        leases = [message for _, message in job.outbox if isinstance(message, p.Lease)]
        assert len(leases) == granted
        assert all(lease.sent == 7.0 + later for lease in leases)
    assert job.agents["host0"].leased_until == start + 0.6 * beat + job.times.lease


def test_an_exit_that_is_told_twice_counts_once() -> None:
    sim = one_host(workers=2, spares=2)
    sim.until_step(5)
    sim.kill(1)
    sim.pump()
    told = sim.worker(1).standing["Exited"]
    launched = len(sim.job.workers)
    sim.job.on_message("host0", told, sim.now)
    assert len(sim.job.workers) == launched
    completed(sim)


def test_what_two_workers_say_in_one_frame_is_one_change() -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_step(5)
    for wid in (0, 1):
        sim.kill(wid)
    frame = [message for _, message in sim.inbox]
    sim.inbox.clear()
    sim.job.on_messages("host0", frame, sim.now)
    assert [type(message) for message in frame] == [p.Exited, p.Exited]
    completed(sim)
    assert len(sim.forms) == 2


def test_of_many_members_only_those_that_took_longest_are_told() -> None:
    sim = one_host(workers=TOLD_APART + 1, spares=1)
    sim.until_step(2)
    told = [fact for fact in sim.events if fact["event"] in ("member_formed", "members_formed")]
    assert [fact["event"] for fact in told] == ["members_formed"]
    assert told[0]["count"] == TOLD_APART + 1
    assert len(told[0]["slowest"]) == SLOWEST
    sim.kill(3)
    sim.until_step(4)
    again = [fact["count"] for fact in sim.events if fact["event"] == "members_formed"]
    assert again == [TOLD_APART + 1] * 2


def test_the_slowest_member_is_told_first() -> None:
    sim = one_host(workers=TOLD_APART + 1, spares=1)
    sim.until_phase(Phase.LIVE)
    job = sim.job
    job.entered = [{"rank": 0, "state_s": 0.1}, {"rank": 1, "state_s": 0.2, "reconfigure_s": 1.0}]
    tell_slowest(job)
    assert [row["rank"] for row in job.events[-1]["slowest"]] == [1, 0]
    assert job.entered == []


def test_what_an_old_generation_says_late_is_not_taken_for_the_new_one() -> None:
    sim = one_host(workers=2, spares=1)
    sim.until_step(5)
    sim.kill(1)
    sim.until_step(8)
    for late in (
        p.Formed(wid=0, generation=1, step=0),
        p.Done(wid=0, generation=1, committed=20, digest="x", handle="h0.2"),
        p.StepFailed(wid=0, generation=1, step=5, error="", origin="step"),
        p.FormFailed(wid=0, generation=1, error="", handle="h0.2"),
        p.Resumed(wid=0, generation=1, committed=1, ago=0.0),
    ):
        sim.job.on_message("host0", late, sim.now)
    assert sim.job.phase is Phase.LIVE
    completed(sim)
    assert len(sim.forms) == 2


def test_a_fresh_job_waits_for_agents() -> None:
    sim = several_hosts(hosts=2)
    job = Membership(settings=sim.settings, store="store:1")
    job.tick(1e6)
    assert job.phase is Phase.GATHERING
    assert job.outbox == []
