"""A rehearsal from its plan to its report: reads like a table of contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from keepstep._version import __version__
from keepstep.canary.cell import Cell
from keepstep.canary.judge import judge
from keepstep.canary.matrix import Machine as Allocation
from keepstep.canary.matrix import cells, runnable
from keepstep.canary.plan import Plan
from keepstep.canary.schedule import schedule
from keepstep.receipt.keys import SigningKey
from keepstep.rehearsal.assemble import Seen, all_material, assemble, sign_all
from keepstep.rehearsal.drilling import Drill, Tools, drills_of, run_drills
from keepstep.rehearsal.folder import (
    DAMAGED,
    HEAD,
    DamagedHeadError,
    Folder,
    Head,
    OtherRehearsalError,
    digest,
)
from keepstep.rehearsal.machine import allocation, this_machine
from keepstep.rehearsal.matrix_runs import Runs, run_matrix
from keepstep.rehearsal.scripts import script_of
from keepstep.rehearsal.seal import Seal, last_end
from keepstep.rehearsal.sitting import over_after
from keepstep.rehearsal.stacks import live_facts, prepare
from keepstep.report.model import OVER, ReceiptFile, Rehearsal

Say = Callable[[str], None]

_DAMAGED = (
    f"{HEAD} was damaged (it is kept as {HEAD}{DAMAGED}); the plan beside it is this one, so its "
    "runs and drills count; when the first of them began is not known, and the time in this report "
    "is when they were taken up"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be rehearsed."""

    plan: Plan
    text: str  # the plan's TOML
    name: str  # of its file
    key: SigningKey
    checkpoints: str = ""  # folder or address of the checkpoints of a real run
    minutes: float | None = None  # after which nothing new is begun; None: to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What came of it."""

    rehearsal: Rehearsal
    receipt: ReceiptFile  # over all of it


def rehearse(request: Request, folder: Folder, say: Say) -> Rehearsed:
    """Run what is not on disk yet, judge all of it, and sign it.

    Raises:
        OtherRehearsalError: The folder belongs to another plan, or does not say to which.
        ValueError, OSError: A job, a stack or the disk is not as it should be.
    """
    plan, is_over = request.plan, over_after(request.minutes)
    head = _head(request, folder)
    scripts = {name: script_of(plan, name) for name in plan.jobs}
    machine = this_machine()
    stacks = prepare(plan, say)
    machine_has = allocation(machine)
    matrix = cells(plan)
    drills_wanted = tuple(drills_of(plan))
    if request.minutes != 0 and _is_open(plan, matrix, machine_has, drills_wanted, folder):
        head = _taken_up(head, folder)
    # Only now: a plan that cannot be used must not keep the folder from the mended one.
    folder.write_head(head, request.text)
    runs = run_matrix(
        plan,
        matrix,
        machine=machine_has,
        stacks=stacks,
        scripts=scripts,
        folder=folder,
        say=say,
        is_over=is_over,
    )
    tools = Tools(stacks=stacks, scripts=scripts, say=say)
    drills = run_drills(plan, tools, len(machine.gpus), folder, is_over)
    seen = Seen(
        plan=plan,
        cells=matrix,
        runs=runs,
        drills=drills,
        judgement=judge(plan, matrix, runs.records),
        machine=machine,
        stacks=stacks,
        live=live_facts(stacks),
    )
    seal = Seal(
        folder=folder,
        key=request.key,
        plan={request.name: digest(request.text)},
        valid_days=plan.valid_days,
    )
    rehearsal = assemble(
        seen,
        sign_all(seen, seal, scripts),
        name=request.name,
        plan_sha256=head.plan_sha256,
        started=head.started,
        seconds=_work(seen),
        notes=_notes(head, runs),
        checkpoints=request.checkpoints,
    )
    made = [run for cell in matrix for run in seen.runs_of(cell.id)]
    end = last_end(made, drills.records)
    return Rehearsed(
        rehearsal=rehearsal, receipt=seal.rehearsal(rehearsal, all_material(seen), end)
    )


def _work(seen: Seen) -> float:
    """Return the seconds of all runs and drills, in whatever sitting they were made."""
    runs = sum(run.seconds for run in seen.runs.records)
    return runs + sum(drill.seconds for drill in seen.drills.records)


def _notes(head: Head, runs: Runs) -> tuple[str, ...]:
    """Return what a reader must know of how it went."""
    found = [*head.notes]
    if head.resumed:
        times = ", ".join(head.resumed)
        found.append(
            f"taken up again at {times}; {runs.found_on_disk} runs are of an earlier sitting, so "
            "the time between the runs of a pair may be longer than their neighbours'"
        )
    if runs.left:
        found.append(f"{_runs(runs.left)} not made: {OVER}")
    return tuple(found)


def _runs(count: int) -> str:
    return "1 run was" if count == 1 else f"{count} runs were"


def _head(request: Request, folder: Folder) -> Head:
    """Return what the folder is about; nothing is written."""
    wanted = digest(request.text)
    new = Head(plan_sha256=wanted, started=_now(), keepstep=__version__)
    try:
        head = folder.read_head()
    except DamagedHeadError:
        if not folder.has_plan(wanted):
            raise
        return new.model_copy(update={"notes": (_DAMAGED,)})
    if head is None:
        return new
    if head.plan_sha256 != wanted:
        raise OtherRehearsalError(
            f"{folder.path}: it holds a rehearsal of another plan (plan.toml in it); wanted a new "
            "folder: --out DIR"
        )
    return head


def _taken_up(head: Head, folder: Folder) -> Head:
    """Return the head of a rehearsal that goes on; of a new one, the same."""
    if not folder.is_begun:
        return head
    return head.model_copy(update={"resumed": (*head.resumed, _now())})


def _is_open(
    plan: Plan,
    matrix: Sequence[Cell],
    machine: Allocation,
    drills: Sequence[Drill],
    folder: Folder,
) -> bool:
    """Whether there is anything to run: a report that is asked for again changes nothing."""
    here = [cell for cell in matrix if not runnable(cell, machine)]
    turns = schedule(here, plan.pairs)
    return any(folder.read_run(turn.cell, turn.pair) is None for turn in turns) or any(
        drill.gpus <= machine.gpus and folder.read_drill(drill.name) is None for drill in drills
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
