"""From one phase to the next, as soon as nobody has to be waited for."""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import on_difference, plan_change
from keepstep.runtime.decide import outliers
from keepstep.runtime.faults import close_incident
from keepstep.runtime.forming import try_first_generation, try_form
from keepstep.runtime.job_state import ALL, BOUNDARY_STEPS, JobState
from keepstep.runtime.reports import tell_slowest
from keepstep.runtime.roster import Phase

MOST_TOLD = 256  # ranks whose processes the event of a generation names


def go_on(job: JobState) -> None:
    """Take every step that has become possible."""
    if job.phase is Phase.GATHERING and not _waits(job):
        try_first_generation(job)
    elif job.phase is Phase.HALTING and not _waits(job):
        try_form(job)
    elif job.phase is Phase.FORMING and not _waits(job):
        _try_go_live(job)
    if job.phase is Phase.LIVE:
        _try_grow(job)
    if job.phase is Phase.LIVE and not _waits(job):
        _try_finish(job)


def _waits(job: JobState) -> bool:
    """Whether the phase waits for a member.

    Asked after every message of every member, so one for whom it waits is remembered: only
    when that one has answered all others are looked at. The last is taken, because orders go
    out, and answers come, about in the order of ranks.
    """
    if job.awaited in job.ranks and _owes(job, job.awaited):
        return True
    if job.phase is Phase.GATHERING and len(job.ranks) < job.settings.world_size:
        return True
    job.awaited = next((wid for wid in reversed(job.ranks) if _owes(job, wid)), -1)
    return job.awaited >= 0


def _owes(job: JobState, wid: int) -> bool:
    """Whether the phase cannot end before something is heard of this member."""
    worker = job.workers[wid]
    if job.phase is Phase.GATHERING:
        return worker.ready is None
    if job.phase is Phase.HALTING:
        held = worker.proposal
        if worker.gone:
            return job.is_recalled(wid)
        return bool(worker.fencing) or held is None or held.generation != job.generation
    if job.phase is Phase.FORMING:
        return worker.formed != job.generation
    return worker.done is None


def _try_go_live(job: JobState) -> None:
    if all(job.workers[wid].formed == job.generation for wid in job.members):
        job.phase = Phase.LIVE
        job.changed = job.lived = True
        job.last_live = job.generation
        job.distrust = ""
        job.suspected.clear()
        job.form_failures = 0
        close_incident(job, f"generation {job.generation} at step {job.start_step}")
        tell_slowest(job)
        job.event(
            "live",
            world_size=len(job.members),
            wanted=job.settings.world_size,
            step=job.start_step,
            steps=job.steps,
            spares=len(job.ready_spares()),
            starting=len(job.starting()),
            processes=[job.who(wid) for wid in job.members[:MOST_TOLD]],
        )


def _try_grow(job: JobState) -> None:
    if (
        job.change is None
        and len(job.ranks) < len(job.slots)
        and job.ready_spares()
        and (job.start_or_committed() < job.steps - BOUNDARY_STEPS)
    ):
        job.event("growing", ready=job.ready_spares())
        plan_change(job)


def _try_finish(job: JobState) -> None:
    finished = [job.workers[wid].done for wid in job.members]
    if job.phase is not Phase.LIVE or any(done is None for done in finished):
        return
    digests = {done.wid: done.digest for done in finished if done is not None}
    outvoted = outliers(digests)
    if outvoted is not None:
        on_difference(job, outvoted, job.steps)
        return
    job.final_digest = next(iter(digests.values()))
    job.phase = Phase.FINISHING
    job.outcome = "completed"
    job.send(ALL, p.Finish())
    job.event("finish", steps=job.steps, state_sha256=job.final_digest)
    job.changed = True
