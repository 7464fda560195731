"""Agents and their processes: which are started where, who mirrors whom, what a lost host means."""

from __future__ import annotations

from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import begin_change
from keepstep.runtime.faults import record_fault
from keepstep.runtime.job_state import JobState
from keepstep.runtime.roster import Agent, Phase, Worker


def _launch(job: JobState, agent: str, count: int) -> None:
    wids = list(range(job.next_wid, job.next_wid + count))
    job.next_wid += count
    ranks = _first_ranks(job, agent, wids)
    for wid, rank in zip(wids, ranks, strict=True):
        job.add_worker(Worker(wid, agent, job.now, first_rank=rank))
    job.send(agent, p.Launch(wids=wids, ranks=ranks))
    job.changed = True


def _first_ranks(job: JobState, agent: str, wids: list[int]) -> list[int]:
    """Give the ranks of the first generation to the first workers of each agent."""
    world_size = job.settings.world_size
    if job.generation:
        return [world_size + wid for wid in wids]
    seated = sum(worker.first_rank < world_size for worker in job.alive_at(agent))
    count = min(job.agents[agent].ranks - seated, len(wids))
    ranks = [job.seat(wid) for wid in wids[:count] if len(job.ranks) < world_size]
    return ranks + [world_size + wid for wid in wids[len(ranks) :]]


def fill(job: JobState, agent: Agent, known: set[int]) -> None:
    """Have the agent start what it was told to start and did not hear, and what is missing."""
    if job.phase in (Phase.FINISHING, Phase.ENDED):
        return
    alive = job.alive_at(agent.name)
    unheard = [worker for worker in alive if worker.wid not in known]
    if unheard:
        job.send(
            agent.name,
            p.Launch(
                wids=[worker.wid for worker in unheard],
                ranks=[worker.first_rank for worker in unheard],
            ),
        )
    if len(alive) < agent.slots:
        _launch(job, agent.name, agent.slots - len(alive))


def replace_process(job: JobState, worker: Worker) -> None:
    """Start a process on the host of one that is gone."""
    agent = job.agents[worker.agent]
    busy = len(job.alive_at(worker.agent))
    if job.phase is not Phase.ENDED and agent.connected and busy < agent.slots:
        _launch(job, worker.agent, 1)


def fence_forgotten(job: JobState, agent: str, wids: list[int]) -> None:
    """Have an agent that counted as gone end the workers that it still has.

    Others have their ranks, so this comes before the agent is granted a lease again.
    """
    for wid in wids:
        if wid in job.workers and job.workers[wid].gone:
            job.send(agent, p.Fence(wid=wid, why="its host counted as lost"))


def give_up_place(job: JobState, wid: int) -> None:
    """Before the first generation a place goes to the next worker that is started."""
    job.slots = [None if other == wid else other for other in job.slots]


def agent_is_gone(job: JobState, name: str, why: str) -> None:
    """No process of this agent can still compute: it fenced them or its lease ran out."""
    mirror = _mirror_of(job, name)
    agent = job.agents.pop(name, None)
    if agent is None:
        return
    job.event("agent_gone", agent=name, host=agent.host, why=why)
    if job.phase in (Phase.FINISHING, Phase.ENDED):
        return
    job.snapshots.rehome(agent.address, mirror.address if mirror is not None else None)
    lost = job.alive_at(name)
    for worker in lost:
        worker.gone = True
    _look_for_records(job, agent, mirror)
    members = [worker.wid for worker in lost if job.rank_of(worker.wid) is not None]
    if job.generation == 0:
        for wid in members:
            give_up_place(job, wid)
        members = []
    for wid in members:
        record_fault(job, wid, "partition", "replace", agent.heard, evidence=why)
    if members:
        begin_change(job, f"host {agent.host} is cut off or down")
    job.changed = True


def _look_for_records(job: JobState, lost: Agent, mirror: Agent | None) -> None:
    """Find out who still has the records that lay in the vault of a lost host."""
    there = [
        worker
        for worker in job.workers.values()
        if worker.gone and (worker.agent == lost.name or worker.keeper == lost.address)
    ]
    for worker in there:
        worker.known, worker.keeper, worker.recalled = -1, "", None
        if mirror is not None:
            worker.keeper, worker.recalled = mirror.address, job.now
    if mirror is not None:
        job.send(mirror.name, p.Recall(wids=[worker.wid for worker in there]))


def _mirror_of(job: JobState, name: str) -> Agent | None:
    """Return the agent that mirrors the records of agent ``name``: the next in the ring."""
    ring = [agent for agent in job.agents if agent == name or job.agents[agent].connected]
    if name not in ring or len(ring) < 2:
        return None
    return job.agents[ring[(ring.index(name) + 1) % len(ring)]]


def mirror_rows(job: JobState) -> dict[str, list[Any]]:
    """Return agent -> address and workers of the agent whose records it mirrors."""
    rows: dict[str, list[Any]] = {}
    wids_of = job.by_agent(job.members)
    connected = [name for name, agent in job.agents.items() if agent.connected]
    following = dict(zip(connected, connected[1:] + connected[:1], strict=True))
    for name, wids in wids_of.items():
        if name not in following:  # out of contact: it is in the ring of its own only
            mirror = _mirror_of(job, name)
            after = mirror.name if mirror is not None else name
        else:
            after = following[name]
        if after != name:
            rows[after] = [job.agents[name].address, wids]
    return rows
