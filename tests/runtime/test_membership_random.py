"""Random faults in random order: whatever happens, fences hold and the job ends one way or another.

What must hold at every Form is checked by the simulation itself (``SimulatedJob.check``): every
lost member's exit was seen, every survivor proposed for that generation, generations increase, no
worker has two ranks, donors hold the agreed state.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime.roster import Phase
from tests.runtime.test_simulated_job import SimulatedJob, one_host, several_hosts

FAULTS = (
    *("kill", "kill", "hang", "raise", "break", "restart", "crash", "blink", "hold", "nothing"),
    "split",
)
fault = st.tuples(st.sampled_from(FAULTS), st.integers(0, 9), st.integers(0, 12))


def inject(sim: SimulatedJob, what: str, number: int) -> None:
    """Carry out one fault on the member, spare or host that ``number`` picks."""
    alive = [worker for worker in sim.all_workers if worker.alive and worker.ready]
    hosts = [agent for agent in sim.agents.values() if agent.cut_off_since is None]
    victim = alive[number % len(alive)] if alive else None
    if what == "restart":
        sim.restart_coordinator()
    elif what == "crash":
        sim.crash_coordinator()
    elif what == "hold":
        sim.held = {number}
    elif what == "blink" and len(hosts) > 1:
        agent = hosts[number % len(hosts)]
        agent.connected = False
        if sim.coordinator_up:
            sim.job.on_disconnect(agent.name, sim.now)
    elif what == "lose" and len(hosts) > 1 and sim.coordinator_up:
        sim.lose_host(hosts[number % len(hosts)].name)
    elif victim is None:
        return
    elif what == "kill":
        sim.kill(victim.wid)
    elif what == "split":
        split(sim, number)
    elif what == "hang" and victim.doing == "training":
        victim.hung = True
    elif what == "raise" and victim.doing == "training":
        sim.fail_step(victim, "step", dirty=number % 2 == 0)
    elif what == "break" and victim.doing == "training":
        sim.fail_step(victim, "collective", dirty=False)


def split(sim: SimulatedJob, number: int) -> None:
    """Have one member complete a step that no other completes, because one of those is lost."""
    training = [worker for worker in sim.members if worker.alive and worker.doing == "training"]
    committed = {worker.committed for worker in sim.members}
    if len(training) < len(sim.members) or len(training) < 2 or len(committed) > 1:
        return
    if training[0].committed + 1 >= sim.steps or any(worker.hung for worker in training):
        return
    ahead, lost = training[number % len(training)], training[(number + 1) % len(training)]
    for worker in training:
        worker.entry = worker.committed + 1
    sim.commit(ahead)
    sim.kill(lost.wid)


def recover_contact(sim: SimulatedJob) -> None:
    """Bring back what was away for a moment."""
    sim.held = set()
    if not sim.coordinator_up:
        sim.restart_coordinator()
    for agent in sim.agents.values():
        if not agent.connected and agent.cut_off_since is None:
            sim.hello(agent.name)


def play(sim: SimulatedJob, faults: list[tuple[str, int, int]], begin: Phase = Phase.LIVE) -> None:
    """Let faults happen some rounds apart from phase ``begin`` on, then let the job end."""
    sim.held = set(range(100)) if begin is Phase.FORMING else set()
    sim.until_phase(begin)
    for what, number, rounds in faults:
        if sim.finished or sim.abort is not None:
            return
        inject(sim, what, number)
        sim.rounds(rounds)
        recover_contact(sim)
    recover_contact(sim)
    for _ in range(3000):
        if sim.finished or sim.abort is not None:
            return
        sim.round()
    raise AssertionError(f"no end: phase {sim.job.phase}, {sim.events[-8:]}")


def judge(sim: SimulatedJob) -> None:
    """A finished job did every step; a failed one says why."""
    if sim.finished:
        base, _, steps = sim.job.final_digest.partition(":")
        assert base == "init" if sim.seeded else base.startswith("init")
        assert int(steps) == sim.steps
        assert {worker.committed for worker in sim.members} == {sim.steps}
    else:
        assert sim.abort is not None
        assert sim.abort.why
        assert sim.abort.code == 1
    launched = [wid for _, m in sim.sent for wid in getattr(m, "wids", []) if hasattr(m, "ranks")]
    assert len(sim.job.workers) <= len(set(launched)) + 1


@settings(max_examples=40, deadline=None, print_blob=True, derandomize=True)
@given(
    faults=st.lists(fault, max_size=8),
    workers=st.integers(1, 4),
    spares=st.integers(0, 2),
    on_loss=st.sampled_from(["replace", "shrink", "wait"]),
    snapshots_every=st.sampled_from([0, 4]),
    repeatable=st.booleans(),
)
def test_random_faults_on_one_host(
    faults: list[tuple[str, int, int]],
    workers: int,
    spares: int,
    on_loss: str,
    snapshots_every: int,
    repeatable: bool,
) -> None:
    sim = one_host(
        workers, spares, 40, settings={"on_loss": on_loss}, snapshots_every=snapshots_every
    )
    sim.repeatable = repeatable
    play(sim, faults)
    judge(sim)


@settings(max_examples=20, deadline=None, print_blob=True, derandomize=True)
@given(
    faults=st.lists(fault | st.tuples(st.just("lose"), st.integers(0, 2), st.integers(0, 50))),
    hosts=st.integers(2, 3),
    spares=st.integers(0, 1),
    on_loss=st.sampled_from(["replace", "shrink"]),
)
def test_random_faults_on_several_hosts(
    faults: list[tuple[str, int, int]], hosts: int, spares: int, on_loss: str
) -> None:
    sim = several_hosts(hosts, 2, spares, 40, settings={"on_loss": on_loss}, snapshots_every=5)
    play(sim, faults)
    judge(sim)


@settings(max_examples=40, deadline=None, print_blob=True, derandomize=True)
@given(
    faults=st.lists(fault, max_size=5),
    begin=st.sampled_from([Phase.GATHERING, Phase.FORMING]),
    hosts=st.integers(1, 2),
    seeded=st.booleans(),
)
def test_random_faults_before_the_first_generation_lives(
    faults: list[tuple[str, int, int]], begin: Phase, hosts: int, seeded: bool
) -> None:
    sim = several_hosts(hosts, 2, 1, 20, seeded=seeded, snapshots_every=4)
    play(sim, faults, begin)
    judge(sim)


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_fault_in_every_round_of_a_recovery_does_not_stop_it(at: int) -> None:
    sim = one_host(3, 3, 40, snapshots_every=4)
    sim.until_step(5)
    sim.kill(1)
    faults: list[tuple[str, int, int]] = [("nothing", 0, at), ("kill", 0, 0), ("restart", 0, 0)]
    play(sim, faults)
    judge(sim)
    assert sim.finished
