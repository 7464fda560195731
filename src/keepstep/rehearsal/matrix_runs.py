"""Runs the cells of a plan, one after the other, each result on disk before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from keepstep.canary.cell import Cell
from keepstep.canary.launch import run_cell
from keepstep.canary.matrix import Machine, runnable
from keepstep.canary.plan import Plan
from keepstep.canary.record import Outcome, RunRecord
from keepstep.canary.schedule import Turn, schedule
from keepstep.rehearsal.folder import Folder
from keepstep.rehearsal.sitting import never
from keepstep.report.model import OVER
from keepstep.stack.named import Stack

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What came of the matrix."""

    records: tuple[RunRecord, ...]
    not_run: dict[str, str]  # id of a cell to why
    found_on_disk: int = 0  # of an earlier sitting
    left: int = 0  # runs that the time was not enough for


def run_matrix(
    plan: Plan,
    cells: Sequence[Cell],
    *,
    machine: Machine,
    stacks: Mapping[str, Stack],
    scripts: Mapping[str, Path],
    folder: Folder,
    say: Say,
    is_over: Callable[[], bool] = never,
) -> Runs:
    """Run every cell that this machine can run as often as the plan says, until time is over."""
    why_not = {cell.id: why for cell in cells if (why := runnable(cell, machine))}
    by_id = {cell.id: cell for cell in cells}
    turns = schedule([cell for cell in cells if cell.id not in why_not], plan.pairs)
    records, old, left = [], 0, 0
    for turn in turns:
        record = folder.read_run(turn.cell, turn.pair)
        if record is None and is_over():
            left += 1
            continue
        if record is None:
            cell = by_id[turn.cell]
            record = run_cell(
                plan,
                cell,
                script=scripts[cell.job],
                stack=stacks[cell.stack],
                folder=folder.run_folder(cell.id, turn.pair),
                turn=turn,
            )
            folder.write_run(record)
            say(_line(turn, len(turns), record))
        else:
            old += 1
        records.append(record)
    ran = {record.cell for record in records}
    why_not |= {turn.cell: OVER for turn in turns if turn.cell not in ran}
    records += [_not_run(by_id[cell], why) for cell, why in why_not.items()]
    return Runs(records=tuple(records), not_run=why_not, found_on_disk=old, left=left)


def _line(turn: Turn, all_of_them: int, record: RunRecord) -> str:
    what = f"run {turn.order + 1} of {all_of_them}: {turn.cell}, round {turn.pair + 1}"
    how = record.outcome.value if record.outcome is Outcome.COMPLETE else record.outcome.upper()
    reason = f": {record.reason}" if record.reason else ""
    return f"{what}: {how} in {record.seconds:.1f} s{reason}"


def _not_run(cell: Cell, why: str) -> RunRecord:
    return RunRecord(
        cell=cell.id,
        pair=0,
        order=0,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        outcome=Outcome.NOT_RUN,
        reason=why,
    )
