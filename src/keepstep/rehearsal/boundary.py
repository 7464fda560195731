"""The boundary: what can be switched back, how, until when, and whether it was proven here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keepstep.canary.plan import Plan
from keepstep.canary.verdict import Verdict
from keepstep.drills.levers import LEVERS, Lever
from keepstep.drills.record import DrillRecord
from keepstep.report.model import BoundaryRow

_UNDOES = {
    "variable": "the backend behind the name nccl",
    "spelling": "the backend of the groups that name it",
    "stack": "all of PyTorch, CUDA libraries included",
}


def boundary(
    plan: Plan, drills: Sequence[DrillRecord], file_of: Mapping[str, str]
) -> tuple[BoundaryRow, ...]:
    """Return one row for each way back, proven or not.

    Args:
        plan: Who answers for them, and until when.
        drills: Of the rehearsal.
        file_of: The receipt of each drill.
    """
    by_name = {drill.name: drill for drill in drills}
    return tuple(
        _row(plan, lever, by_name.get(f"rollback/{name}"), file_of)
        for name, lever in LEVERS.items()
    )


def _row(
    plan: Plan, lever: Lever, drill: DrillRecord | None, file_of: Mapping[str, str]
) -> BoundaryRow:
    owner = plan.rollback.owner or "nobody is named in the plan"
    until = f"; here: {plan.rollback.until}" if plan.rollback.until else "; no day is set here"
    return BoundaryRow(
        lever=lever.what,
        undoes=_UNDOES[lever.name],
        how=f"{lever.lives_in}; who: {lever.who} ({owner}); restart: {lever.restart}",
        until=f"{lever.ends}{until}",
        keeps_checkpoints=lever.keeps_checkpoints,
        cannot_undo=lever.cannot_undo,
        proven=drill.verdict if drill else Verdict.NOT_RUN,
        proof=drill.reason if drill else "the rollback drill was not run",
        receipt=file_of.get(drill.name, "") if drill else "",
    )
