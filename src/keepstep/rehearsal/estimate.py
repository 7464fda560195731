"""How long a rehearsal takes: by what was measured, else at most as long as the plan allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from keepstep.canary.cell import Cell
from keepstep.canary.matrix import Machine, cells, runnable
from keepstep.canary.plan import Plan
from keepstep.canary.record import Outcome, RunRecord
from keepstep.drills.record import DrillRecord
from keepstep.rehearsal.drilling import Drill, drills_of
from keepstep.rehearsal.folder import DamagedHeadError, Folder, digest, look
from keepstep.report.figures import count_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What is still to be done, of runs or of drills."""

    by_measure: tuple[float, ...]  # seconds of each whose like was measured
    unknown: int  # of which nothing like it was measured
    made: int


def estimate(plan: Plan, text: str, machine: Machine, out: Path) -> list[str]:
    """Return the end of the list: what can run here, and how long it takes. Nothing is changed.

    Args:
        plan: What is to be rehearsed.
        text: Its TOML, by which the folder's own plan is known.
        machine: What is here.
        out: The folder, which need not be there.
    """
    folder = Folder(out)
    here = [cell for cell in cells(plan) if not runnable(cell, machine)]
    drills = [drill for drill in drills_of(plan) if drill.gpus <= machine.gpus]
    runs = len(here) * plan.pairs
    can = (
        f"can run here: {count_text(runs, 'run')} of {count_text(len(here), 'cell')}, "
        f"{count_text(len(drills), 'drill')}"
    )
    if short := sum(drill.gpus_to_answer > machine.gpus for drill in drills):
        can += f" ({short} of them without an answer: no GPU)"
    if other := _other(folder, text):
        return [can, other, *_runs(_Left(by_measure=(), unknown=runs, made=0), plan)]
    left = _runs_left(plan, here, folder)
    still = _drills_left(drills, folder)
    made = left.made + still.made
    done = f"; made already, in {out}: {count_text(left.made, 'run')}, " if made else ""
    lines = [can + (f"{done}{count_text(still.made, 'drill')}" if made else "")]
    lines += [*_runs(left, plan), *_drills(still)]
    return lines if len(lines) > 1 else [*lines, "nothing is left to run: only the report is made"]


def _other(folder: Folder, text: str) -> str:
    """Say that a folder holds something else, by which no time can be told; "" where not."""
    try:
        head = folder.read_head()
    except (DamagedHeadError, OSError) as error:
        return str(error)
    if head is None or head.plan_sha256 == digest(text):
        return ""
    return f"{folder.path} holds a rehearsal of another plan; wanted a new folder: --out DIR"


def _runs(left: _Left, plan: Plan) -> Iterator[str]:
    if left.by_measure:
        seconds = seconds_text(sum(left.by_measure))
        yield f"time: {count_text(len(left.by_measure), 'run')}: about {seconds}, by runs like them"
    if left.unknown:
        limit = plan.limits.run_s
        yield (
            f"time: {count_text(left.unknown, 'run')}: at most {seconds_text(left.unknown * limit)}"
            f", an upper bound: limits.run_s is {limit:g} s, and none like them was measured"
        )


def _drills(left: _Left) -> Iterator[str]:
    if left.by_measure:
        seconds = seconds_text(sum(left.by_measure))
        count = count_text(len(left.by_measure), "drill")
        yield f"time: {count}: about {seconds}, by drills of the same kind"
    if left.unknown:
        yield (
            f"time: {count_text(left.unknown, 'drill')}: not known, none of the kind was measured "
            "and the plan has no limit for drills"
        )


def _runs_left(plan: Plan, here: Sequence[Cell], folder: Folder) -> _Left:
    found = {
        cell.id: [look(folder.run_file(cell.id, pair), RunRecord) for pair in range(plan.pairs)]
        for cell in here
    }
    seconds = {name: _seconds(records) for name, records in found.items()}
    by_job: dict[tuple[str, str], list[float]] = {}
    for cell in here:
        by_job.setdefault((cell.job, cell.topology), []).extend(seconds[cell.id])
    expected: list[float | None] = []
    for cell in here:
        like = seconds[cell.id] or by_job[cell.job, cell.topology]
        open_runs = sum(record is None for record in found[cell.id])
        expected += [median(like) if like else None] * open_runs
    return _left(expected, len(here) * plan.pairs)


def _drills_left(drills: Sequence[Drill], folder: Folder) -> _Left:
    found: Mapping[str, DrillRecord | None] = {
        drill.name: look(folder.drill_file(drill.name), DrillRecord) for drill in drills
    }
    kinds: dict[str, list[float]] = {}
    for made in filter(None, found.values()):
        kinds.setdefault(made.drill, []).append(made.seconds)
    expected: list[float | None] = []
    for name, record in found.items():
        if record is None:
            like = kinds.get(name.partition("/")[0])
            expected.append(median(like) if like else None)
    return _left(expected, len(drills))


def _seconds(records: Sequence[RunRecord | None]) -> list[float]:
    return [each.seconds for each in records if each and each.outcome is not Outcome.NOT_RUN]


def _left(expected: Sequence[float | None], whole: int) -> _Left:
    known = tuple(seconds for seconds in expected if seconds is not None)
    return _Left(by_measure=known, unknown=len(expected) - len(known), made=whole - len(expected))
