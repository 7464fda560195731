"""Runs the drills of a plan, each result on disk before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keepstep.canary.plan import Plan
from keepstep.drills.hang import hang
from keepstep.drills.job_runs import SavingJob
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What drills work with."""

    stacks: Mapping[str, Stack]  # by their names in the plan
    scripts: Mapping[str, Path]  # of the jobs
    say: Say


Work = Callable[[Tools, Path], DrillRecord]  # does a drill in a folder

ON_CPU = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill that the plan asks for."""

    name: str
    gpus: int  # that it needs
    proves: str
    work: Work
    gpus_to_answer: int = 0  # without them it runs, and shows less than it is to prove


@dataclass(frozen=True, slots=True, kw_only=True)
class Drills:
    """What came of them."""

    records: tuple[DrillRecord, ...]
    not_run: tuple[NotRun, ...]


def run_drills(
    plan: Plan,
    tools: Tools,
    gpus: int,
    folder: Folder,
    is_over: Callable[[], bool] = never,
) -> Drills:
    """Run every drill that this machine can run, until time is over."""
    records, not_run = [], []
    say = tools.say
    for drill in drills_of(plan):
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
            record = drill.work(tools, folder.drill_folder(drill.name))
            folder.write_drill(record)
            say(f"drill {drill.name}: {record.verdict} in {record.seconds:.0f} s: {record.reason}")
        records.append(record)
    return Drills(records=tuple(records), not_run=tuple(not_run))


def drills_of(plan: Plan) -> Iterator[Drill]:
    """Yield the drills of a plan in their order."""
    if "hang" in plan.drills:
        for stack, spellings in plan.backends.items():
            yield from (_hang(stack, asked) for asked in spellings)
    if "rollback" in plan.drills:
        yield from (_rollback(plan, lever) for lever in LEVERS)
    if "restore" in plan.drills:
        yield _restore(plan)
    if "replace" in plan.drills:
        swap = f"replace/{plan.candidate}/{ON_CPU}"
        yield Drill(
            name=swap,
            gpus=0,
            proves="a lost rank is replaced inside the living job",
            work=lambda tools, folder: replace(
                tools.stacks[plan.candidate], folder=folder, say=tools.say, name=swap
            ),
        )


def _hang(stack: str, asked: str) -> Drill:
    spelling, *levers = asked.split()
    title = f"hang/{stack}/{'+'.join(asked.split())}"
    variables = dict(lever.split("=", 1) for lever in levers)
    return Drill(
        name=title,
        gpus=0 if spelling == ON_CPU else 1,
        proves="which ranks leave a post-mortem, and that it names the rank that is held",
        work=lambda tools, folder: hang(
            tools.stacks[stack],
            spelling,
            folder=folder,
            say=tools.say,
            variables=variables,
            name=title,
        ),
    )


def _saving_job(plan: Plan, tools: Tools) -> SavingJob:
    """Return what the drills rollback and restore run."""
    name = plan.saving_job
    return SavingJob(tools.scripts[name], plan.jobs[name].arguments)


def _rollback(plan: Plan, lever: str) -> Drill:
    title = f"rollback/{lever}"
    return Drill(
        name=title,
        gpus=0,  # without one it shows what the names stand for, and says what is missing
        gpus_to_answer=1 if LEVERS[lever].backend else 0,
        proves=f"the way back works and is verified on every rank: {LEVERS[lever].what}",
        work=lambda tools, folder: rollback(
            tools.stacks[plan.reference],
            tools.stacks[plan.candidate],
            job=_saving_job(plan, tools),
            folder=folder,
            levers=[lever],
            owner=plan.rollback.owner,
            until=plan.rollback.until,
            say=tools.say,
            name=title,
        ),
    )


def _restore(plan: Plan) -> Drill:
    title = f"restore/{plan.reference}-and-{plan.candidate}"
    return Drill(
        name=title,
        gpus=0,
        proves="checkpoints are read in both directions, and training goes on with them",
        work=lambda tools, folder: restore(
            tools.stacks[plan.reference],
            tools.stacks[plan.candidate],
            job=_saving_job(plan, tools),
            folder=folder,
            say=tools.say,
            name=title,
        ),
    )
