"""A fault: noted, its process fenced, its evidence gathered; and the end of a job that failed."""

from __future__ import annotations

from typing import Any

from keepstep.exit_codes import ExitCode
from keepstep.runtime import protocol as p
from keepstep.runtime.job_state import ALL, JobState
from keepstep.runtime.roster import Incident, Phase


def record_fault(
    job: JobState,
    wid: int | None,
    fault: str,
    action: str,
    since: float,
    reached: int = 0,
    evidence: str = "",
) -> None:
    """Note a fault in the book of recoveries and in the open incident; ``since`` is its moment."""
    rank = None if wid is None else job.rank_of(wid)
    step = max([reached, job.start_step, *job.committed_counts()])
    if job.incident is None:
        job.incident = Incident(job.generation, step, _member_rows(job))
    step = max(step, job.incident.step)  # who is lost later in it may have no count to tell
    job.incident.faults.append({"rank": rank, "worker": wid, "fault": fault, "evidence": evidence})
    job.recoveries.begin(
        wid=wid, rank=rank, fault=fault, action=action, step=step, since=since, now=job.now
    )


def fence(job: JobState, wid: int, why: str) -> None:
    """Have the agent end this worker; nothing is decided before it is known to be gone."""
    worker = job.workers[wid]
    if not worker.gone and not worker.fencing:
        worker.fencing = why
        job.send(worker.agent, p.Fence(wid=wid, why=why))
        job.event("fence", **job.who(wid), why=why)


def _member_rows(job: JobState) -> list[list[Any]]:
    rows = []
    for wid, rank in job.ranks.items():
        agent = job.workers[wid].agent
        host = job.agents[agent].host if agent in job.agents else ""
        rows.append([rank, wid, agent, host])
    return rows


def close_incident(job: JobState, outcome: str) -> None:
    """Have every agent write its evidence of the faults since the last generation that lived."""
    incident, job.incident = job.incident, None
    if incident is None or not job.agents:
        return
    first = incident.faults[0]
    who = "unnamed" if first["rank"] is None else f"rank-{first['rank']}"
    name = f"{job.job_name}-generation-{incident.generation:04d}-{first['fault']}-{who}"
    message = p.Incident(
        name=name,
        generation=incident.generation,
        step=incident.step,
        members=incident.members,
        faults=incident.faults,
        outcome=outcome,
        lead=next(iter(job.agents)),
    )
    job.send(ALL, message)
    if all(fault["worker"] is None for fault in incident.faults):
        job.unnamed[name] = {rank: wid for rank, wid, *_ in incident.members}


def abort(job: JobState, why: str, code: int) -> None:
    """End the job as failed with this exit code."""
    if job.phase is Phase.ENDED:
        return
    close_incident(job, f"the job ended: {why}")
    job.event("abort", why=why, code=code)
    _end(job, "failed", why, code)


def interrupt(job: JobState) -> None:
    """End the job because its user wants it; what was complete stays so."""
    if job.phase is Phase.ENDED:
        return
    close_incident(job, "the job was interrupted")
    job.event("interrupted")
    _end(job, job.outcome or "interrupted", "interrupted", ExitCode.INTERRUPTED)


def _end(job: JobState, outcome: str, why: str, code: int) -> None:
    job.phase, job.outcome, job.why, job.exit_code = Phase.ENDED, outcome, why, code
    job.send(ALL, p.Abort(why=why, code=code))
    job.changed = True
