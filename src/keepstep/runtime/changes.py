"""The begin of a change of members: the present generation is halted.

At once after a fault; at a step boundary when it is planned.
"""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.faults import fence, record_fault
from keepstep.runtime.job_state import JobState
from keepstep.runtime.roster import Change, Phase


def begin_change(job: JobState, why: str, *, step: int = 0, distrust: str = "") -> None:
    """Stop the present generation now; what was planned or under way is superseded.

    ``step`` is the one that failed, as far as the culprit's own record tells; ``distrust`` says why
    nobody's live state may be used.
    """
    if job.phase is Phase.ENDED:
        return
    if job.generation == 0:
        return  # nothing was formed yet; it is formed as soon as enough workers are ready
    job.distrust = job.distrust or distrust
    if job.phase is Phase.HALTING and job.change and job.change.at_step is None:
        return
    if job.phase is Phase.LIVE:
        job.failing_step = max(step, job.start_or_committed())
        job.failures_at[job.failing_step] = job.failures_at.get(job.failing_step, 0) + 1
    elif job.phase is Phase.FORMING:
        job.form_failures += 1
    job.change = Change(job.now)
    job.event("halt", why=why)
    _halt(job)


def plan_change(job: JobState, drain: int | None = None) -> None:
    """Stop the present generation at a step boundary, to replace ``drain`` or to grow."""
    at_step = min(job.boundary(), job.steps)
    job.change = Change(job.now, drain=drain, at_step=at_step)
    _halt(job)


def _halt(job: JobState) -> None:
    assert job.change is not None
    _note_owners(job)
    job.phase = Phase.HALTING
    job.generation += 1
    job.stragglers.clear()
    for wid in job.members:
        job.workers[wid].proposal = None
    for agent, wids in job.by_agent(job.alive(job.members)).items():
        at_step = job.change.at_step
        job.send(agent, p.Halt(generation=job.generation, wids=wids, at_step=at_step))
    job.changed = True


def _note_owners(job: JobState) -> None:
    """Note whose records hold the per-rank state of each place."""
    if job.phase is Phase.LIVE:
        job.owners = list(job.slots)
    elif job.phase is Phase.FORMING:
        # A newcomer that got as far as to hold its rank's state has it; else who had it before.
        job.owners = [
            wid if wid is not None and job.workers[wid].formed == job.generation else owner
            for wid, owner in zip(job.slots, job.owners, strict=True)
        ]


DIFFER = "replicas were found to differ"


def on_difference(job: JobState, outvoted: tuple[int, ...], step: int, repeated: str = "") -> None:
    """Replicas differ: somebody's memory changed. Nobody's live state is used again.

    ``repeated`` is what was found out by repeating a step, where that is how it showed.
    """
    job.event(
        "replicas_differ",
        step=step,
        outvoted=list(outvoted),
        ranks=[job.rank_of(wid) for wid in outvoted],
        **({"repeated": repeated} if repeated else {}),
    )
    for wid in outvoted:
        evidence = "its replica differs from the others'"
        record_fault(job, wid, "corrupt", "replace", job.now, evidence=evidence)
        fence(job, wid, evidence)
    if not outvoted:
        evidence = repeated or "replicas differ and no majority says whose is right"
        record_fault(job, None, "corrupt", "retry", job.now, evidence=evidence)
    begin_change(job, "replicas differ", step=step, distrust=DIFFER)
