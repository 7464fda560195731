"""The judge on real runs: ``python -m benchmarks.judge_real [--stack NAME] [--job NAME]``.

Trains one job on one stack in seven equal arms and in three with a planted slowdown of 10 %, in
rounds as a rehearsal does. 21 comparisons of equal arms must give no alarm, and 21 with the
slowdown must find it. The arms of a comparison (reference, A/A, candidate) are three different
ones; comparisons share arms, so they are not independent of each other.

Runs are kept in the file and not made again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.recovery.results import Results, machine, say
from keepstep.canary.cell import Cell, Role
from keepstep.canary.launch import run_cell
from keepstep.canary.matrix import cells
from keepstep.canary.measured import applies, value
from keepstep.canary.metrics import METRICS
from keepstep.canary.plan import Plan, default_plan
from keepstep.canary.record import RunRecord
from keepstep.canary.schedule import schedule
from keepstep.canary.soft import Measured, judge_metrics
from keepstep.canary.verdict import SoftResult, Verdict
from keepstep.rehearsal.scripts import script_of
from keepstep.stack.named import find_stack

EQUAL, SLOWED = 7, 3  # arms
TRIPLES = ((1, 2), (3, 4), (5, 6))  # distance of reference and A/A from the candidate


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are missing, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_real", description=__doc__)
    parser.add_argument("--stack", default="2.15.0")
    parser.add_argument("--job", default="data_parallel")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("judge-real.json"))
    options = parser.parse_args(arguments)
    plan = default_plan().model_copy(update={"pairs": options.pairs})
    wanted = {**machine(), "stack": options.stack, "job": options.job, "pairs": options.pairs}
    results = Results.open(options.out, wanted)
    arms = list(_arms(plan, options.job))
    _run(plan, arms, options.stack, results)
    runs = [RunRecord.model_validate(record) for record in results.records]
    print(render(plan, arms, runs), end="")
    return 0


def _arms(plan: Plan, job: str) -> Iterator[Cell]:
    """Yield the arms: the reference of the job on a CPU, again and again."""
    first = next(cell for cell in cells(plan) if cell.job == job and not cell.gpus)
    for number in range(EQUAL + SLOWED):
        role = Role.SAME if number < EQUAL else Role.SLOWER
        yield first.model_copy(update={"id": f"arm-{number}", "role": role, "against": "arm-0"})


def _run(plan: Plan, arms: Sequence[Cell], stack: str, results: Results) -> None:
    by_id = {cell.id: cell for cell in arms}
    done = {(record["cell"], record["pair"]) for record in results.records}
    for turn in schedule(arms, plan.pairs):
        if (turn.cell, turn.pair) in done:
            continue
        cell = by_id[turn.cell]
        with tempfile.TemporaryDirectory(prefix="keepstep-judge-") as folder:
            run = run_cell(
                plan,
                cell,
                script=script_of(plan, cell.job),
                stack=find_stack(stack),
                folder=Path(folder) / "run",
                turn=turn,
            )
        results.add(_small(run).model_dump(mode="json"))
        say(f"{turn.cell}, round {turn.pair + 1}: {run.outcome} in {run.seconds:.1f} s")


def _small(run: RunRecord) -> RunRecord:
    """Return a run without what no metric is made from."""
    ranks = tuple(each.model_copy(update={"fingerprint": {}}) for each in run.ranks)
    return run.model_copy(update={"ranks": ranks, "output_tail": ""})


def render(plan: Plan, arms: Sequence[Cell], runs: Sequence[RunRecord]) -> str:
    """Return the report as Markdown."""
    job = plan.jobs[arms[0].job]
    metrics = [name for name in METRICS if applies(name, job)]
    lines = [
        f"{len(runs)} runs of {arms[0].job}, {plan.pairs} pairs in each comparison.",
        "",
        "| metric | margin | noise of a run | equal arms: pass / fail / inconclusive "
        "| 10 % slower: found / passed / inconclusive |",
        "|---|---|---|---|---|",
    ]
    equal = [_compare(plan, arms, runs, metrics, each) for each in _triples(0)]
    slowed = [_compare(plan, arms, runs, metrics, each) for each in _triples(EQUAL)]
    for number, metric in enumerate(metrics):
        ours = [found[number] for found in equal]
        planted = [found[number] for found in slowed]
        noise = sorted(each.noise or 0.0 for each in ours)
        margin = f"{ours[0].margin:.0%}" if ours[0].judged else "not judged"
        lines.append(
            f"| {metric} | {margin} | {noise[len(noise) // 2]:.1%} | {_tally(ours, 'pfi')} "
            f"| {_tally(planted, 'fpi') if metric in ('step', 'throughput') else '-'} |"
        )
    return "\n".join(lines) + "\n"


def _triples(first: int) -> list[tuple[int, int, int]]:
    """Return candidate, reference and A/A of each comparison; candidates from ``first`` on."""
    if first == 0:
        return [(i, (i + a) % EQUAL, (i + b) % EQUAL) for i in range(EQUAL) for a, b in TRIPLES]
    return [(i, j, (j + 1) % EQUAL) for i in range(first, first + SLOWED) for j in range(EQUAL)]


def _compare(
    plan: Plan,
    arms: Sequence[Cell],
    runs: Sequence[RunRecord],
    metrics: Sequence[str],
    triple: tuple[int, int, int],
) -> list[SoftResult]:
    values: Mapping[str, list[list[float | None]]] = {
        metric: [_values(plan, arms[number], runs, metric) for number in triple]
        for metric in metrics
    }
    return judge_metrics(
        [
            Measured(
                metric=metric,
                candidate=values[metric][0],
                reference=values[metric][1],
                same=values[metric][2],
                margin=None if margin == "informative" else float(margin),
            )
            for metric in metrics
            for margin in [plan.margins.of(0, metric)]
        ]
    )


def _values(plan: Plan, cell: Cell, runs: Sequence[RunRecord], metric: str) -> list[float | None]:
    own = sorted((run for run in runs if run.cell == cell.id), key=lambda run: run.pair)
    return [value(metric, run, plan.jobs[cell.job]) for run in own]


def _tally(results: Sequence[SoftResult], order: str) -> str:
    names = {"p": Verdict.PASS, "f": Verdict.FAIL, "i": Verdict.INCONCLUSIVE}
    found = Counter(each.verdict for each in results)
    return " / ".join(str(found[names[letter]]) for letter in order)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
