"""Puts together what was seen: the receipts of its parts, and the record that the report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep._version import __version__
from keepstep.canary.cell import Cell
from keepstep.canary.plan import Plan
from keepstep.canary.record import Outcome, RunRecord
from keepstep.canary.verdict import Judgement
from keepstep.drills.record import DrillRecord
from keepstep.drills.surroundings import minor_of
from keepstep.receipt.material import Material, by_rank
from keepstep.rehearsal.boundary import boundary
from keepstep.rehearsal.checkpoint_answer import checkpoint_answer
from keepstep.rehearsal.costs import costs
from keepstep.rehearsal.differences import open_differences
from keepstep.rehearsal.drilling import Drills
from keepstep.rehearsal.matrix_runs import Runs
from keepstep.rehearsal.numbers import numbers
from keepstep.rehearsal.seal import Seal
from keepstep.rehearsal.unprovable import unprovable
from keepstep.report.model import (
    CellResult,
    Machine,
    NotRun,
    ReceiptFile,
    Rehearsal,
    StackSummary,
)
from keepstep.stack.material import material
from keepstep.stack.named import Stack

# Of the material facts, those that a reader of the report looks for.
_SHOWN = ("torch.version", "torch.git", "torch.cuda", "nccl", "driver", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was seen and said."""

    plan: Plan
    cells: Sequence[Cell]
    runs: Runs
    drills: Drills
    judgement: Judgement
    machine: Machine
    stacks: Mapping[str, Stack]
    live: Mapping[str, dict[str, str]]  # material facts of each stack, by its name in the plan

    def runs_of(self, cell: str) -> list[RunRecord]:
        """Return the runs of a cell that were made."""
        return [
            run
            for run in self.runs.records
            if run.cell == cell and run.outcome is not Outcome.NOT_RUN
        ]

    def material_of(self, cell: Cell) -> Material:
        """Return what the ranks of a cell ran on, as they said themselves."""
        facts = [
            {each.rank: material(each.fingerprint) for each in run.ranks if each.fingerprint}
            for run in self.runs_of(cell.id)
        ]
        return by_rank(cell.stack, facts)


def sign_all(seen: Seen, seal: Seal, scripts: Mapping[str, Path]) -> tuple[ReceiptFile, ...]:
    """Write one receipt for each cell that was run and each drill."""
    verdicts = {each.cell: each for each in seen.judgement.cells}
    found = [
        seal.cell(
            cell,
            seen.runs_of(cell.id),
            verdicts[cell.id],
            scripts[cell.job],
            seen.material_of(cell),
        )
        for cell in seen.cells
        if cell.id not in seen.runs.not_run
    ]
    return (*found, *(seal.drill(each, _bound_to(seen, each)) for each in seen.drills.records))


def _bound_to(seen: Seen, drill: DrillRecord) -> Material:
    """Return what the stacks of a drill are, under the names that the plan gives them."""
    names = {drill.stack, *drill.fingerprints, str(drill.facts.get("old", ""))}
    return {
        label: {"interpreter": seen.live[label]}
        for label, stack in seen.stacks.items()
        if stack.name in names and label in seen.live
    }


def all_material(seen: Seen) -> Material:
    """Return what everything ran on, by stack: the first cell of each stack stands for it."""
    found: Material = {}
    for cell in seen.cells:
        if cell.id not in seen.runs.not_run:
            for stack, processes in seen.material_of(cell).items():
                found.setdefault(stack, processes)
    return found


def assemble(
    seen: Seen,
    receipts: tuple[ReceiptFile, ...],
    *,
    name: str,
    plan_sha256: str,
    started: str,
    seconds: float,
    notes: tuple[str, ...],
    checkpoints: str = "",
) -> Rehearsal:
    """Return the record of the whole rehearsal."""
    file_of = {each.about: each.file for each in receipts}
    by_cell = {cell.id: seen.material_of(cell) for cell in seen.cells}
    return Rehearsal(
        plan=name,
        plan_sha256=plan_sha256,
        keepstep=__version__,
        started=started,
        seconds=seconds,
        machine=seen.machine,
        stacks=_stacks(seen),
        cells=tuple(_result(seen, cell, file_of) for cell in seen.cells),
        judgement=seen.judgement,
        drills=seen.drills.records,
        boundary=boundary(seen.plan, seen.drills.records, file_of),
        checkpoint=checkpoint_answer(
            seen.drills.records, old=minor_of(seen.stacks[seen.plan.reference]), root=checkpoints
        ),
        costs=costs(seen.cells, seen.runs.records),
        numbers=numbers(seen.cells, seen.runs.records),
        differences=open_differences(by_cell),
        not_run=_not_run(seen),
        unprovable=unprovable(seen.machine),
        receipts=receipts,
        notes=notes,
    )


def _result(seen: Seen, cell: Cell, file_of: Mapping[str, str]) -> CellResult:
    if cell.id in seen.runs.not_run:
        return CellResult(cell=cell, state="not run")
    return CellResult(
        cell=cell,
        state="judged",
        verdict=next(each for each in seen.judgement.cells if each.cell == cell.id),
        seconds=sum(run.seconds for run in seen.runs_of(cell.id)),
        receipt=file_of[cell.id],
    )


def _not_run(seen: Seen) -> tuple[NotRun, ...]:
    cells = {cell.id: cell for cell in seen.cells}
    found = [
        NotRun(what=name, proves=cells[name].proves, why=why)
        for name, why in seen.runs.not_run.items()
    ]
    return (*found, *seen.drills.not_run)


def _stacks(seen: Seen) -> tuple[StackSummary, ...]:
    ordered = dict.fromkeys([seen.plan.reference, seen.plan.candidate, *seen.stacks])
    return tuple(_stack(seen, name) for name in ordered)


def _stack(seen: Seen, name: str) -> StackSummary:
    stack = seen.stacks[name]
    facts = next(
        (
            next(iter(processes.values()))
            for cell in seen.cells
            for processes in seen.material_of(cell).values()
            if cell.stack == name and processes
        ),
        {},
    )
    return StackSummary(
        name=name,
        torch=facts.get("torch.version", stack.torch),
        origin=stack.origin,
        facts={each: facts[each] for each in _SHOWN if each in facts},
    )
