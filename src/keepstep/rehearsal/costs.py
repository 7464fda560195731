"""What a useful step costs on each stack: everything that was taken, over the steps that count."""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.canary.cell import Cell, Role
from keepstep.canary.record import Outcome, RunRecord
from keepstep.report.model import Cost

_SHOWN = (Role.REFERENCE, Role.CANDIDATE, Role.LEVER)


def costs(cells: Sequence[Cell], runs: Sequence[RunRecord]) -> tuple[Cost, ...]:
    """Return one row a comparison: a reference, and what was compared with it.

    A processor or GPU that waits for the job to start, to load or to end is taken as well, so all
    of a run counts; a run that did not complete has no useful step and costs all the same.
    """
    found = []
    for reference in (cell for cell in cells if cell.role is Role.REFERENCE):
        compared = [c for c in cells if reference.id in (c.id, c.against) and c.role in _SHOWN]
        per_step = {cell.id: _per_step(cell, runs) for cell in compared}
        if any(value is not None for value in per_step.values()):
            found.append(
                Cost(
                    what=f"{reference.job}, {reference.topology}",
                    unit="GPU hours" if reference.gpus else "core hours",
                    per_step=per_step,
                    note="start, initialisation and end of a run included",
                )
            )
    return tuple(found)


def _per_step(cell: Cell, runs: Sequence[RunRecord]) -> float | None:
    own = [run for run in runs if run.cell == cell.id and run.outcome is not Outcome.NOT_RUN]
    useful = sum(_steps(run) for run in own if run.outcome is Outcome.COMPLETE)
    taken = sum(run.seconds for run in own) * (cell.gpus or cell.world_size)
    return taken / 3600 / useful if useful else None


def _steps(run: RunRecord) -> int:
    """Return the optimizer steps of a run: those of the rank that made fewest."""
    return min((len(rank.steps) for rank in run.ranks), default=0)
