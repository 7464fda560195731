"""What a diagnosis changes: the rank that it names for an unexplained stall is replaced.

The watch tells culprit from victim by progress alone. Where all ranks wait at the same place it can
name nobody, and the generation is formed anew with the same members. The diagnosis of what the
recorders wrote comes about a second later and may know better: a spare takes the place of the rank
that it names at the next step boundary, or at once if the job stalls again.
"""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import plan_change
from keepstep.runtime.faults import record_fault
from keepstep.runtime.job_state import BOUNDARY_STEPS, JobState
from keepstep.runtime.roster import Phase

# What another process cures: the diagnosis's word and the run's own. A program that calls something
# else on one rank does so in any process.
CURABLE = {"stalled": "hang", "device": "device"}


def on_judged(job: JobState, message: p.Judged) -> None:
    """Take the diagnosis of an incident."""
    job.event(
        "verdict",
        incident=message.incident,
        folder=message.folder,
        verdict=message.outcome,
        ranks=message.ranks,
        fault=message.fault,
        headline=message.headline,
        after_s=round(message.seconds, 3),
    )
    members = job.unnamed.pop(message.incident, None)
    if members is None or message.outcome != "culprit" or message.fault not in CURABLE:
        return
    for rank in message.ranks:
        wid = members.get(rank)
        if wid in job.ranks and _can_be_replaced(job, wid):
            job.blamed[wid] = (CURABLE[message.fault], message.headline)
            job.event("blamed", **job.who(wid), incident=message.incident, why=message.headline)
    replace_blamed(job)


def _can_be_replaced(job: JobState, wid: int) -> bool:
    return not job.workers[wid].gone and not job.workers[wid].fencing


def blamed_member(job: JobState) -> int | None:
    """Return a member that a diagnosis has named and that still takes part."""
    return next((w for w in job.members if w in job.blamed and _can_be_replaced(job, w)), None)


def replace_blamed(job: JobState) -> None:
    """Swap such a member for a spare at a step boundary, when that is possible."""
    wid = blamed_member(job) if job.blamed else None
    if wid is None or job.phase is not Phase.LIVE or job.change is not None:
        return
    if job.start_or_committed() >= job.steps - BOUNDARY_STEPS or not job.ready_spares():
        return
    fault, headline = job.blamed.pop(wid)
    record_fault(job, wid, fault, "replace", job.now, evidence=headline)
    plan_change(job, drain=wid)
