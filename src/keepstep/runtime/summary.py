"""The facts at the end of a run."""

from __future__ import annotations

from typing import Any

from keepstep.runtime.membership import Membership
from keepstep.runtime.samples import count_lost_and_repeated, merge


def summarise(job: Membership) -> dict[str, Any]:
    """Return the summary of ``keepstep run``; durations in seconds."""
    steps = job.steps if job.outcome == "completed" else job.start_or_committed()
    counted = count_lost_and_repeated(merge(job.sample_rows), job.generations, steps)
    lost, repeated = (None, None) if counted is None or job.notes_lost else counted
    return {
        "outcome": job.outcome,
        "why": job.why,
        "steps": steps,
        "world_size": len(job.members),
        "generations": len(job.generations),
        "state_sha256": job.final_digest,
        "samples_lost": lost,
        "samples_repeated": repeated,
        "median_step_s": round(job.median_step, 6),
        "coordinator_restarts": job.recoveries.coordinator_restarts,
        "spares_lost": job.recoveries.spares_lost,
        "injections_fired": sorted(job.fired),
        "recoveries": [entry.summary() for entry in job.recoveries.entries],
    }
