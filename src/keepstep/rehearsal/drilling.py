"""Runs the drills of a plan, each result on disk before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keepstep.canary.plan import Plan
from keepstep.drills.hang import hang
from keepstep.drills.levers import LEVERS
from keepstep.drills.record import DrillRecord
from keepstep.drills.replace import replace
from keepstep.drills.restore import restore
from keepstep.drills.rollback import rollback
from keepstep.rehearsal.folder import Folder
from keepstep.rehearsal.sitting import never
from keepstep.report.model import OVER, NotRun
from keepstep.stack.named import Stack

Say = Callable[[str], None]
Work = Callable[[Path], DrillRecord]  # does a drill in a folder

ON_CPU = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill that the plan asks for."""

    name: str
    gpus: int  # that it needs
    proves: str
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Drills:
    """What came of them."""

    records: tuple[DrillRecord, ...]
    not_run: tuple[NotRun, ...]


def run_drills(
    plan: Plan,
    stacks: Mapping[str, Stack],
    scripts: Mapping[str, Path],
    gpus: int,
    folder: Folder,
    say: Say,
    is_over: Callable[[], bool] = never,
) -> Drills:
    """Run every drill that this machine can run, until time is over."""
    records, not_run = [], []
    for drill in drills_of(plan, stacks, scripts, say):
        if drill.gpus > gpus:
            why = f"it needs {drill.gpus} GPU, and here are {gpus}"
            not_run.append(NotRun(what=drill.name, proves=drill.proves, why=why))
            continue
        record = folder.read_drill(drill.name)
        if record is None and is_over():
            not_run.append(NotRun(what=drill.name, proves=drill.proves, why=OVER))
            continue
        if record is None:
            say(f"drill {drill.name}")
            record = drill.work(folder.drill_folder(drill.name))
            folder.write_drill(record)
            say(f"drill {drill.name}: {record.verdict} in {record.seconds:.0f} s: {record.reason}")
        records.append(record)
    return Drills(records=tuple(records), not_run=tuple(not_run))


def drills_of(
    plan: Plan, stacks: Mapping[str, Stack], scripts: Mapping[str, Path], say: Say
) -> Iterator[Drill]:
    """Yield the drills of a plan in their order."""
    old, new = stacks[plan.reference], stacks[plan.candidate]
    if "hang" in plan.drills:
        yield from _hangs(plan, stacks, say)
    if "rollback" in plan.drills:
        yield from (_rollback(plan, lever, old, new, scripts, say) for lever in LEVERS)
    if "restore" in plan.drills:
        again = f"restore/{plan.reference}-and-{plan.candidate}"
        yield Drill(
            name=again,
            gpus=0,
            proves="checkpoints are read in both directions, and training goes on with them",
            work=lambda folder: restore(
                old, new, job=scripts[plan.saving_job], folder=folder, say=say, name=again
            ),
        )
    if "replace" in plan.drills:
        swap = f"replace/{plan.candidate}/{ON_CPU}"
        yield Drill(
            name=swap,
            gpus=0,
            proves="a lost rank is replaced inside the living job",
            work=lambda folder: replace(new, folder=folder, say=say, name=swap),
        )


def _hangs(plan: Plan, stacks: Mapping[str, Stack], say: Say) -> Iterator[Drill]:
    for stack, spellings in plan.backends.items():
        for asked in spellings:
            spelling, *levers = asked.split()
            title = f"hang/{stack}/{'+'.join(asked.split())}"
            yield Drill(
                name=title,
                gpus=0 if spelling == ON_CPU else 1,
                proves="which ranks leave a post-mortem, and that it names the rank that is held",
                work=_hang(title, stacks[stack], spelling, levers, say),
            )


def _rollback(
    plan: Plan, lever: str, old: Stack, new: Stack, scripts: Mapping[str, Path], say: Say
) -> Drill:
    title = f"rollback/{lever}"
    return Drill(
        name=title,
        gpus=0,  # without one it shows what the names stand for, and says what is missing
        proves=f"the way back works and is verified on every rank: {LEVERS[lever].what}",
        work=lambda folder: rollback(
            old,
            new,
            job=scripts[plan.saving_job],
            folder=folder,
            levers=[lever],
            owner=plan.rollback.owner,
            until=plan.rollback.until,
            say=say,
            name=title,
        ),
    )


def _hang(title: str, stack: Stack, spelling: str, levers: list[str], say: Say) -> Work:
    variables = dict(lever.split("=", 1) for lever in levers)
    return lambda folder: hang(
        stack, spelling, folder=folder, say=say, variables=variables, name=title
    )
