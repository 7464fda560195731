"""What keeps a large job cheap: orders for those concerned, one journal for many messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keepstep.runtime import coordinator as c
from keepstep.runtime import protocol as p
from keepstep.runtime.forming import MOST_DONORS
from keepstep.runtime.journal import Journal
from keepstep.runtime.membership import Membership
from keepstep.runtime.overview import INTERVAL, WORKERS_PER_INTERVAL, Overviews
from keepstep.runtime.roster import Phase
from keepstep.runtime.settings import Settings
from tests.runtime.test_simulated_job import several_hosts


def test_each_agent_is_told_to_halt_its_own_workers_only() -> None:
    sim = several_hosts(hosts=3, workers=2, spares=1)
    sim.until_step(3)
    sim.kill(0)
    sim.pump()
    halts = {to: m.wids for to, m in sim.sent if isinstance(m, p.Halt)}
    assert halts == {"host0": [1], "host1": [3, 4], "host2": [6, 7]}


def test_each_agent_is_mirrored_by_the_next() -> None:
    sim = several_hosts(hosts=3, workers=1, spares=0)
    sim.until_step(1)
    assert sim.forms[0].mirrors == {
        "host1": ["host0:1", [0]],
        "host2": ["host1:1", [1]],
        "host0": ["host2:1", [2]],
    }


def test_a_receiver_is_given_a_few_donors_of_many() -> None:
    sim = several_hosts(hosts=MOST_DONORS, workers=3, spares=1)
    sim.until_step(3)
    sim.kill(0)
    sim.until(lambda: len(sim.forms) == 2)
    donors = [wid for wid, _ in sim.forms[-1].donors]
    assert len(set(donors)) == MOST_DONORS
    assert len({sim.worker(wid).agent for wid in donors}) == MOST_DONORS
    sim.until_over()
    assert sim.job.outcome == "completed"


def test_ranks_follow_the_slots() -> None:
    sim = several_hosts(hosts=2, workers=2, spares=1)
    sim.until_step(3)
    sim.kill(1)
    sim.until(lambda: len(sim.forms) == 2)
    members = sim.forms[-1].members
    assert [sim.job.rank_of(wid) for wid in members] == [0, 1, 2, 3]
    assert sim.job.rank_of(1) is None


def test_all_agents_but_the_first_share_an_overview() -> None:
    sim = several_hosts(hosts=3)
    overviews = Overviews()
    first, second = (overviews.due(sim.job, name, 5.0) for name in ("host1", "host2"))
    assert first is not None
    assert first is second
    assert overviews.due(sim.job, "host0", 5.0) != first


def test_a_large_job_is_told_less_often() -> None:
    sim = several_hosts(hosts=2)
    agents = 2 * WORKERS_PER_INTERVAL
    for number in range(2, agents):
        sim.job.agents[f"more{number}"] = sim.job.agents["host1"]
    overviews = Overviews()
    assert overviews.due(sim.job, "host1", 5.0) is not None
    assert overviews.due(sim.job, "host1", 5.0 + 1.5 * INTERVAL) is None
    assert overviews.due(sim.job, "host1", 5.0 + 2 * INTERVAL) is not None


def config_in(folder: Path) -> c.CoordinatorConfig:
    return c.CoordinatorConfig(
        host="127.0.0.1",
        port=0,
        journal=str(folder / "journal"),
        events=None,
        store="store:1",
        name="job",
        settings={},
        injections=[],
    )


def test_messages_that_arrive_together_share_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Membership] = []
    monkeypatch.setattr(Journal, "write", lambda self, job: written.append(job))
    job = Membership(settings=Settings(workers=1, spares=0, min_agents=2), store="store:1")
    coordinator = c.Coordinator(config_in(tmp_path), "secret", job)

    async def take_two() -> None:
        for _ in range(2):
            job.changed = True
            coordinator._take("host0", [p.Beat(sent=0.0, workers=[])])
        assert not written
        await asyncio.sleep(0)

    asyncio.run(take_two())
    assert len(written) == 1


def test_garbage_is_collected_after_a_recovery_and_then_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(
        "keepstep.runtime.coordinator.gc.collect", lambda: collected.append(clock[0])
    )
    monkeypatch.setattr("keepstep.runtime.coordinator.gc.freeze", lambda: None)
    monkeypatch.setattr("keepstep.runtime.coordinator.time.monotonic", lambda: clock[0])
    job = Membership(settings=Settings(workers=1, spares=0), store="store:1")
    coordinator = c.Coordinator(config_in(tmp_path), "secret", job)
    for phase, generation, later, wanted in (
        (Phase.LIVE, 1, 0.0, 1),
        (Phase.LIVE, 1, 1.0, 1),
        (Phase.HALTING, 2, 1.0, 1),
        (Phase.FORMING, 2, 1.0, 1),
        (Phase.LIVE, 2, 1.0, 2),
        (Phase.LIVE, 2, c.COLLECT + 1, 3),
        (Phase.HALTING, 3, c.COLLECT + 1, 4),
    ):
        clock[0] += later
        job.phase, job.generation = phase, generation
        coordinator._collect_garbage()
        assert len(collected) == wanted


def test_scripts_that_go_on_after_the_training_are_waited_for(tmp_path: Path) -> None:
    sim = several_hosts(hosts=1, workers=2, spares=0, settings={"min_agents": 1})
    sim.until_over()
    assert sim.job.phase is Phase.FINISHING
    coordinator = c.Coordinator(config_in(tmp_path), "secret", sim.job)

    def later(seconds: float) -> bool:
        sim.job.now += seconds
        coordinator._end_if_over()
        return coordinator.ended.is_set() or coordinator._summary_sent

    busy = sim.job.workers[1]
    busy.gone = False
    assert not later(0.0)
    assert not later(1000 * c.LINGER)
    busy.gone = True
    assert later(1.0)
