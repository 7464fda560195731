"""After a pause of a whole host nobody counts as late, and nothing is used without a lease."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keepstep.runtime import protocol as p
from keepstep.runtime.beats import read_progress
from keepstep.runtime.joining import nccl_host
from keepstep.runtime.lease import Lease
from keepstep.runtime.link import AgentLink
from keepstep.runtime.membership import LAST_HOSTS
from keepstep.runtime.pauses import HELD_UP, Pauses
from keepstep.runtime.progress import Phase, ProgressRecord, Slot
from keepstep.runtime.roster import Phase as Stage
from keepstep.runtime.settings import Times
from tests.runtime.test_simulated_job import SimulatedJob, several_hosts


def test_a_loop_that_is_a_little_late_was_not_held_up() -> None:
    pauses = Pauses()
    assert pauses.look(50.0) == 0.0
    pauses.will_look(50.0, 0.25)
    assert pauses.look(50.25 + HELD_UP) == 0.0
    assert pauses.woke == 0.0
    pauses.will_look(60.0, 0.25)
    assert pauses.look(70.0) == pytest.approx(9.75)
    assert pauses.woke == 70.0


def test_the_coordinator_gets_a_whole_lease_to_answer_after_a_pause() -> None:
    lease = Lease(times=Times(patience=2.0, median_step=0.0), until=100.0)
    assert lease.until_after(0.0) == 100.0
    assert lease.until_after(500.0) == 506.0


# --- what the agent sees --------------------------------------------------------------------------


def a_worker(folder: Path) -> Any:
    record = ProgressRecord.create(folder / "progress")
    return SimpleNamespace(
        wid=0,
        progress=record,
        sequence=(0, 0),
        cpu=(0.0, 0),
        process=SimpleNamespace(pid=os.getpid()),
    )


def test_ages_are_counted_from_the_moment_at_which_the_host_went_on(tmp_path: Path) -> None:
    worker, now = a_worker(tmp_path), time.monotonic()
    worker.progress[Slot.CHANGED] = worker.progress[Slot.SIDE] = int((now - 20) * 1e9)
    late = read_progress(worker, 2.0, 0.0)
    assert late.age > 19
    assert late.side_age > 19
    fresh = read_progress(worker, 2.0, now - 0.5)
    assert 0.4 < fresh.age < 1.9
    assert 0.4 < fresh.side_age < 1.9


def test_a_worker_that_has_published_nothing_has_no_age_after_a_pause_either(
    tmp_path: Path,
) -> None:
    found = read_progress(a_worker(tmp_path), 2.0, time.monotonic() - 30)
    assert (found.age, found.side_age) == (0.0, 0.0)


# --- what the worker does -------------------------------------------------------------------------


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that a worker would have sent to itself."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    return sent


@pytest.fixture
def worker_link(
    tmp_path: Path, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentLink]:
    """A link whose side thread does nothing by itself."""
    monkeypatch.setattr(AgentLink, "_run", lambda _: None)
    ours, theirs = socket.socketpair()
    record = ProgressRecord.create(tmp_path / "progress")
    made = AgentLink(theirs, record, lambda: None, lambda: 0, None)
    made._progress[Slot.PATIENCE] = int(2e9)
    yield made
    ours.close()
    theirs.close()


def set_lease(link: AgentLink, seconds: float) -> None:
    link._progress[Slot.LEASE] = int((time.monotonic() + seconds) * 1e9)


def test_without_a_lease_the_training_thread_waits_until_it_is_extended(
    worker_link: AgentLink,
) -> None:
    worker_link._progress.enter(Phase.STEP)
    set_lease(worker_link, -1.0)
    thread = threading.Thread(target=worker_link.check_lease)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert worker_link._progress[Slot.PHASE] == Phase.WAITING
    set_lease(worker_link, 60.0)
    thread.join(30)
    assert not thread.is_alive()
    assert worker_link._progress[Slot.PHASE] == Phase.STEP


def test_a_worker_whose_lease_ends_while_it_runs_ends_itself(
    worker_link: AgentLink, killed: list[int]
) -> None:
    set_lease(worker_link, 0.0)
    now = time.monotonic() + 1.0
    assert worker_link._obey_lease(now) == 0.0
    assert killed


def test_a_worker_that_was_suspended_waits_for_a_lease_and_then_ends_itself(
    worker_link: AgentLink, killed: list[int]
) -> None:
    worker_link._progress[Slot.LEASE] = int(100.0 * 1e9)  # long ago
    killed.clear()
    worker_link._pauses.woke = 1e9
    assert worker_link._obey_lease(1e9 + 2.0) == pytest.approx(4.0)
    assert not killed
    worker_link._obey_lease(1e9 + 6.1)
    assert killed


# --- what the coordinator does --------------------------------------------------------------------


def test_a_coordinator_that_was_suspended_with_everybody_gives_them_time() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    later = sim.now + 100.0
    sim.job.tick(later)
    sim.job.tick(later + sim.job.times.lease)
    assert list(sim.job.agents) == ["host0", "host1"]
    after = later
    while sim.job.agents:
        after += 0.2
        sim.job.tick(after)
    assert after > later + LAST_HOSTS  # nobody could go on without them


def test_a_host_is_given_up_only_if_another_can_go_on() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1)
    sim.until_step(5)
    now = sim.now
    while len(sim.job.agents) == 2:
        now += 0.2
        sim.job.on_message("host0", p.Beat(sent=now, workers=[]), now)
        sim.job.tick(now)
        assert now < sim.now + 2 * sim.job.times.lease + 2
    assert list(sim.job.agents) == ["host0"]
    for _ in range(100):  # now it is alone, and silent itself
        now += 0.2
        sim.job.tick(now)
    assert list(sim.job.agents) == ["host0"]


def test_survivors_of_a_recovery_that_was_suspended_are_not_late() -> None:
    sim = several_hosts(hosts=2, workers=2, spares=1)
    sim.until_step(5)
    sim.worker(1).hung = True  # it never leaves its step
    sim.kill(0)
    sim.pump()
    assert sim.job.phase is Stage.HALTING
    limit = sim.job.times.leave_step
    later = sim.now + 100.0
    sim.job.tick(later)
    hear_all(sim, later + limit / 2)
    assert not fenced(sim)
    at = later
    while not fenced(sim):
        at += 0.2
        hear_all(sim, at)
        assert at < later + 2 * limit
    assert at > later + limit


def hear_all(sim: SimulatedJob, now: float) -> None:
    for name in list(sim.job.agents):
        sim.job.on_message(name, p.Beat(sent=now, workers=[]), now)
    sim.job.tick(now)


def fenced(sim: SimulatedJob) -> list[int]:
    return [m.wid for _, m in [*sim.sent, *sim.job.outbox] if isinstance(m, p.Fence)]


def test_a_host_that_comes_back_ends_its_old_workers_before_it_has_a_lease() -> None:
    sim = several_hosts(hosts=2, workers=1, spares=1, steps=400)
    sim.until_step(5)
    agent = sim.agents["host1"]
    old = [worker.wid for worker in agent.running.values() if worker.alive]
    agent.connected = False  # suspended: its workers do not run, and nobody hears of it
    for wid in old:
        agent.running[wid].alive = False
    sim.job.on_disconnect("host1", sim.now)
    sim.until(lambda: "host1" not in sim.job.agents)
    for wid in old:
        agent.running[wid].alive = True
    sim.sent.clear()
    sim.hello("host1")
    told = [message for to, message in sim.sent if to == "host1"]
    kinds = [type(message) for message in told]
    first = cast("list[p.Fence]", told[: len(old)])
    assert sorted(fence.wid for fence in first) == sorted(old)
    assert kinds.index(p.Welcome) >= len(old)
    sim.until_over()
    assert sim.job.outcome == "completed"


# --- GPUs that processes share --------------------------------------------------------------------


def test_processes_with_a_card_of_their_own_are_one_host_to_nccl() -> None:
    layout = [nccl_host("10.0.0.1", local, 4) for local in range(10)]
    assert len(set(layout[:4])) == 1
    assert len(set(layout[4:8])) == 1
    assert len(set(layout)) == 3
    assert nccl_host("10.0.0.2", 0, 4) != layout[0]
