"""Did the new stack compute the same numbers as the old one? From the records of the runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keepstep.canary.cell import Cell
from keepstep.canary.gate.parity import FIRST_STEPS
from keepstep.canary.record import Outcome, RunRecord
from keepstep.report.model import Numbers

_KINDS = ("loss", "gradient norm")
_Key = tuple[int, int, str]  # step, rank, kind
_Arm = Mapping[_Key, set[float | None]]  # every value that was seen; None: a run has none


def numbers(cells: Sequence[Cell], runs: Sequence[RunRecord]) -> tuple[Numbers, ...]:
    """Return one comparison for each cell of another stack than its reference's that was run.

    Every complete run of the one is compared with every complete run of the other.
    """
    by_id = {cell.id: cell for cell in cells}
    ran = {run.cell for run in runs if run.outcome is not Outcome.NOT_RUN}
    pairs = [
        (cell, by_id[cell.against])
        for cell in cells
        if cell.against in by_id and cell.id in ran and cell.stack != by_id[cell.against].stack
    ]
    return tuple(_compared(old, new, runs) for new, old in pairs)


def _compared(old: Cell, new: Cell, runs: Sequence[RunRecord]) -> Numbers:
    before, after = _complete(old, runs), _complete(new, runs)
    arms = _arm(before, old), _arm(after, new)
    steps = {step for step, _, _ in (*arms[0], *arms[1])}
    differences = {
        key: gap
        for key in sorted(arms[0].keys() & arms[1].keys())
        if (gap := _gap(arms[0][key], arms[1][key])) is not None
    }
    # The first of the largest: up to there the states were more alike.
    where = max(differences, key=lambda key: differences[key], default=None)
    return Numbers(
        cell=new.id,
        against=old.id,
        runs=len(after),
        reference_runs=len(before),
        steps=len(steps),
        missing=_no_run(old, before) or _no_run(new, after) or _missing(*arms, steps),
        difference=differences[where] if where else None,
        where="{2} of step {0} on rank {1}".format(*where) if where else "",
    )


def _no_run(cell: Cell, complete: Sequence[RunRecord]) -> str:
    return "" if complete else f"no complete run of {cell.id}"


def _complete(cell: Cell, runs: Sequence[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if run.cell == cell.id and run.outcome is Outcome.COMPLETE]


def _arm(runs: Sequence[RunRecord], cell: Cell) -> dict[_Key, set[float | None]]:
    """Return what was seen at each step of each rank; a rank without a record has nothing."""
    steps = range(max((len(r.steps[:FIRST_STEPS]) for run in runs for r in run.ranks), default=0))
    found: dict[_Key, set[float | None]] = {}
    for run in runs:
        by_rank = {rank.rank: rank.steps[:FIRST_STEPS] for rank in run.ranks}
        for rank in range(cell.world_size):
            own = by_rank.get(rank, ())
            for number in steps:
                step = own[number] if number < len(own) else None
                values = (step.loss, step.gradient_norm) if step else (None, None)
                for kind, value in zip(_KINDS, values, strict=True):
                    found.setdefault((number, rank, kind), set()).add(value)
    return found


def _missing(before: _Arm, after: _Arm, steps: set[int]) -> str:
    """Say what is not there: a loss may be seen by some ranks only, as in a pipeline."""
    if not steps:
        return "no step was recorded"
    keys = sorted(before.keys() | after.keys())
    for step, rank, kind in keys:
        seen = before.get((step, rank, kind), {None}) | after.get((step, rank, kind), {None})
        never = seen == {None}
        if None in seen and not (kind == "loss" and never):
            return f"no {kind} of step {step} on rank {rank} in some runs"
    for step in sorted(steps):
        losses = [key for key in keys if key[0] == step and key[2] == "loss"]
        if all(before.get(key, {None}) == {None} for key in losses):
            return f"no loss of step {step} on any rank"
    return ""


def _gap(before: set[float | None], after: set[float | None]) -> float | None:
    """Return the largest relative difference; None: all are the same to the last bit."""
    old = [value for value in before if value is not None]
    new = [value for value in after if value is not None]
    if len({value.hex() for value in (*old, *new)}) < 2:
        return None
    return max((_relative(one, other) for one in old for other in new), default=None)


def _relative(one: float, other: float) -> float:
    greatest = max(abs(one), abs(other))
    # Halves, because the difference of two very large numbers is none that a float can hold.
    return abs(one / 2 - other / 2) / (greatest / 2) if greatest else 0.0
