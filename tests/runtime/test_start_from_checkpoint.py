"""A job that goes on from a checkpoint: who has its state; it never starts at 0 instead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from keepstep.runtime import protocol as p
from keepstep.runtime.decide import NoCommonStateError, RankSource, from_first
from keepstep.runtime.roster import Phase
from keepstep.runtime.samples import count_lost_and_repeated
from keepstep.runtime.settings import Settings
from tests.runtime.test_simulated_job import SimulatedJob

SAVED = 12


@dataclass
class ResumedJob(SimulatedJob):
    """Workers with a rank have loaded a checkpoint; spares and those that come later have not."""

    loaded: dict[int, int] = field(default_factory=dict)  # worker -> step, where not SAVED

    def say(self, agent: str, message: p.Message) -> None:
        """Say what was loaded."""
        if isinstance(message, p.Ready):
            worker = self.worker(message.wid)
            start = self.loaded.get(worker.wid, SAVED)
            if self.job.workers[worker.wid].first_rank >= self.settings.world_size:
                start = -1
            else:
                worker.base, worker.committed, worker.entry = "saved", start, start
            message = replace(message, start=start, digest=worker.digest)
        elif isinstance(message, p.Proposal) and not message.member_of:
            message = replace(message, committed=0)  # it has committed nothing itself
        super().say(agent, message)


def test_all_take_the_state_of_the_first_rank_that_has_loaded_it() -> None:
    digests = {0: "built", 1: "saved:12", 2: "", 3: "saved:12"}
    starts = {0: -1, 1: 12, 2: 12, 3: 12}
    found = from_first([0, 1, 2, 3], digests, {2: 9}, start=12, starts=starts)
    assert (found.start_step, found.digest) == (12, "saved:12")
    assert (found.donors, found.receivers) == ((1, 3), (0, 2))
    assert found.rank_sources == {2: RankSource(wid=9, count=12)}


def test_without_anybody_who_has_loaded_it_there_is_no_start() -> None:
    with pytest.raises(NoCommonStateError, match="step 12"):
        from_first([0, 1], {0: "built", 1: "built"}, start=12, starts={0: -1, 1: -1})


def test_samples_of_the_run_before_are_not_missed() -> None:
    rows = [[0, 0, 1, 5, 9, 50, 60, 10]]
    assert count_lost_and_repeated(rows, [[1, 5, 1]], 10) == (0, 0)
    assert count_lost_and_repeated(rows, [[1, 4, 1]], 10) == (10, 0)


def resumed(**loaded: int) -> ResumedJob:
    settings = Settings(workers=3, spares=1)
    return ResumedJob(settings, loaded={int(name[1:]): step for name, step in loaded.items()})


def test_ranks_that_found_different_checkpoints_do_not_train_together() -> None:
    sim = resumed(w2=8)
    sim.until_over()
    assert sim.abort is not None
    assert "rank 2 step 8" in sim.abort.why
    assert not sim.forms


def test_the_first_generation_begins_at_the_step_of_the_checkpoint() -> None:
    sim = resumed()
    sim.until(lambda: bool(sim.forms))
    form = sim.forms[0]
    assert (form.start_step, form.digest, form.receivers) == (SAVED, f"saved:{SAVED}", [])
    sim.until_over()
    assert (sim.job.outcome, sim.job.final_digest) == ("completed", f"saved:{sim.steps}")
    assert [event["step"] for event in sim.events if event["event"] == "from_checkpoint"] == [SAVED]


def test_what_was_loaded_outlives_a_first_generation_that_fails() -> None:
    sim = resumed()
    sim.held = {0, 1, 2}
    sim.until(lambda: sim.job.phase is Phase.FORMING)
    sim.kill(0)
    sim.until(lambda: len(sim.forms) == 2)
    form = sim.forms[1]
    assert (form.start_step, form.digest, form.receivers) == (SAVED, f"saved:{SAVED}", [3])
    assert form.members == [3, 1, 2]


def test_when_everybody_who_had_loaded_it_is_lost_the_job_ends_and_does_not_begin_anew() -> None:
    sim = ResumedJob(Settings(workers=1, spares=1))
    sim.held = {0}
    sim.until(lambda: sim.job.phase is Phase.FORMING)
    sim.kill(0)
    sim.until_over()
    assert sim.abort is not None
    assert f"every process that had loaded the state of step {SAVED} is gone" in sim.abort.why


@pytest.mark.parametrize("versions", [["2.15.0"], ["2.15.0", "2.14.1"]])
def test_a_mixed_world_is_told_once(versions: list[str]) -> None:
    sim = SimulatedJob(Settings(workers=3, spares=0))
    for wid in (0, 1, 2):
        said = p.Joined(wid=wid, torch=versions[wid % len(versions)])
        sim.job.on_message("host0", said, sim.now)
    told = [fact for fact in sim.job.events if fact["event"] == "torch_versions_differ"]
    assert [fact["found"] for fact in told] == ([versions] if len(versions) > 1 else [])
