"""How often the judge errs: ``python -m benchmarks.judge [--comparisons N]``.

Simulates comparisons of a cell with eight metrics: A/A, where nothing differs, and one where the
step is 10 % slower. Beside the judge of keepstep stand the rules that others use, re-implemented
roughly from their public descriptions; each is asked for every metric, and one bad answer is an
alarm:

- *threshold*: the mean is more than 5 % worse (pytest-benchmark ``mean:5%`` and most scripts)
- *Welch*: t-test for unequal variances, two-sided, p < 0.05 (degrees of freedom rounded down)
- *Kayenta*: the 98 % Mann-Whitney interval of the shift lies above 0.25 of the shift itself

The controls count as in a rehearsal: where A/A differs, the answer is inconclusive.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, variance

from keepstep.canary.cell import Cell, Role
from keepstep.canary.metrics import METRICS
from keepstep.canary.schedule import Turn, schedule
from keepstep.canary.soft import Measured, judge_metrics
from keepstep.canary.student import chance_above
from keepstep.canary.verdict import SoftResult, Verdict

MARGIN = 0.05
SLOWER = 0.10
NOISES = (0.0025, 0.005, 0.01, 0.02, 0.03)
PAIRS = (3, 5, 7)

# An arm: its values by round. The three arms of a comparison are reference, A/A and candidate.
Arms = tuple[list[float], list[float], list[float]]
Rule = Callable[[Sequence[float], Sequence[float]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What disturbs the runs."""

    name: str
    drift: float = 0.0  # how much slower the machine is at the end of all rounds
    tail: float = 0.0  # chance of a run that is disturbed five times as much
    between: float = 0.0  # noise between allocations, where each arm has its own
    noisier: float = 1.0  # how many times as noisy the candidate is


WORLDS = (
    World(name="quiet"),
    World(name="drift", drift=0.10),
    World(name="heavy tail", tail=0.10),
)


@dataclass(slots=True)
class Count:
    """Answers of one rule in one setting."""

    alarms: int = 0
    found: int = 0
    passed: int = 0  # equal arms that pass
    slow_passed: int = 0  # the slower candidate that passes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge")
    parser.add_argument("--comparisons", type=int, default=2000, help="in each row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    for line in report(options.comparisons, options.seed):
        print(line, flush=True)
    sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")
    return 0


def report(comparisons: int, seed: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield (
        f"{comparisons:,} A/A comparisons and {comparisons:,} with steps {SLOWER:.0%} slower in "
        f"each row; {len(METRICS)} metrics, margin {MARGIN:.0%}. Percent of comparisons."
    )
    yield ""
    rules = ["threshold", "Welch", "Kayenta"]
    yield (
        "| machine | noise | pairs | false alarm | found | A/A inconclusive | slower passes | "
        + " | ".join(f"{name}: false alarm / found" for name in rules)
        + " |"
    )
    yield "|---|---|---|---|---|---|---|" + "---|" * len(rules)
    for world in WORLDS:
        for noise in NOISES:
            for pairs in PAIRS:
                yield _row(world, noise, pairs, comparisons, seed)
    yield ""
    yield "Not as it should be: arms in separate allocations (3 % between them), and a candidate "
    yield "that is three times as noisy as the reference."
    yield ""
    for world in (
        World(name="separate allocations", between=0.03),
        World(name="noisy candidate", noisier=3.0),
    ):
        for noise in (0.005, 0.01):
            yield _row(world, noise, 5, comparisons, seed)


def _row(world: World, noise: float, pairs: int, comparisons: int, seed: int) -> str:
    judge, others = measure(world, noise, pairs, comparisons, seed)
    cells = [
        world.name,
        f"{100 * noise:g} %",
        str(pairs),
        _share(judge.alarms, comparisons),
        _share(judge.found, comparisons),
        _share(comparisons - judge.passed - judge.alarms, comparisons),
        _share(judge.slow_passed, comparisons),
    ]
    for count in others.values():
        cells.append(f"{_share(count.alarms, comparisons)} / {_share(count.found, comparisons)}")
    return "| " + " | ".join(cells) + " |"


def _share(count: int, comparisons: int) -> str:
    return f"{100 * count / comparisons:.1f}"


def measure(
    world: World, noise: float, pairs: int, comparisons: int, seed: int
) -> tuple[Count, dict[str, Count]]:
    """Return the answers of the judge and of the other rules in one setting."""
    chance = random.Random(f"{seed} {world.name} {noise} {pairs}")
    judge, others = Count(), {name: Count() for name in RULES}
    for _ in range(comparisons):
        equal = [simulate(world, noise, pairs, chance) for _ in METRICS]
        # One metric is slower, the others are not: the hardest case for the correction.
        old, same, new = equal[0]
        slower = [(old, same, [(1 + SLOWER) * value for value in new]), *equal[1:]]
        believed = same_do_not_differ(equal)
        answers = {each.verdict for each in judged(equal)} if believed else set()
        judge.alarms += Verdict.FAIL in answers
        judge.passed += answers == {Verdict.PASS}
        answer = judged(slower)[0].verdict if believed else Verdict.INCONCLUSIVE
        judge.found += answer is Verdict.FAIL
        judge.slow_passed += answer is Verdict.PASS
        for name, rule in RULES.items():
            others[name].alarms += any(rule(arms[0], arms[2]) for arms in equal)
            others[name].found += rule(slower[0][0], slower[0][2])
    return judge, others


def judged(arms: Sequence[Arms]) -> list[SoftResult]:
    """Return the judge's answers for the metrics of a cell."""
    return judge_metrics(
        [
            Measured(metric="step", reference=old, same=same, candidate=new, margin=MARGIN)
            for old, same, new in arms
        ]
    )


def same_do_not_differ(arms: Sequence[Arms]) -> bool:
    """Tell whether the A/A control lets the judge be believed."""
    measured = [
        Measured(metric="step", reference=old, same=None, candidate=same, margin=MARGIN)
        for old, same, _ in arms
    ]
    return all(
        each.verdict is not Verdict.FAIL
        for reverse in (False, True)
        for each in judge_metrics(measured, reverse=reverse)
    )


def simulate(world: World, noise: float, pairs: int, chance: random.Random) -> Arms:
    """Return one metric of one comparison, run in the order of the schedule."""
    arms: dict[str, list[float]] = {name: [0.0] * pairs for name in ("old", "same", "new")}
    places = {name: chance.gauss(0, world.between) for name in arms}
    turns = _turns(pairs)
    for turn in turns:
        spread = noise * (world.noisier if turn.cell == "new" else 1.0)
        if world.tail and chance.random() < world.tail:
            spread *= 5
        value = chance.gauss(0, spread) + places[turn.cell]
        value += world.drift * turn.order / len(turns)
        arms[turn.cell][turn.pair] = math.exp(value)
    return arms["old"], arms["same"], arms["new"]


@cache
def _turns(pairs: int) -> tuple[Turn, ...]:
    return schedule([_cell("old", ""), _cell("same", "old"), _cell("new", "old")], pairs)


def _cell(name: str, against: str) -> Cell:
    return Cell(
        id=name,
        role=Role.CANDIDATE,
        job="job",
        stack=name,
        backend="gloo",
        topology="one",
        world_size=2,
        against=against,
    )


def threshold(old: Sequence[float], new: Sequence[float]) -> bool:
    """Tell whether the mean is more than the margin worse."""
    return fmean(new) > (1 + MARGIN) * fmean(old)


def welch(old: Sequence[float], new: Sequence[float]) -> bool:
    """Tell whether Welch's test calls the candidate worse."""
    squares = [variance(arm) / len(arm) for arm in (old, new)]
    error = math.sqrt(sum(squares))
    freedom = sum(squares) ** 2 / sum(each**2 / (len(old) - 1) for each in squares)
    return chance_above((fmean(new) - fmean(old)) / error, max(1, int(freedom))) < 0.025


def kayenta(old: Sequence[float], new: Sequence[float]) -> bool:
    """Tell whether the Mann-Whitney interval of the shift is above a quarter of the shift."""
    shifts = sorted(after - before for before in old for after in new)
    middle = len(shifts) // 2
    shift = (shifts[middle] + shifts[-middle - 1]) / 2
    lower = shifts[_rank_of_bound(len(old), len(new)) - 1]
    return lower > 0.25 * abs(shift)


@cache
def _rank_of_bound(old: int, new: int) -> int:
    """Return which of the ordered shifts is the lower bound: the 1 % quantile of U, at least 1."""
    counts = _mann_whitney(old, new)
    total, seen = sum(counts), 0
    for value, count in enumerate(counts):
        seen += count
        if seen >= 0.01 * total:
            return max(1, value)
    raise AssertionError("the counts add up")


@cache
def _mann_whitney(old: int, new: int) -> tuple[int, ...]:
    """Return how many arrangements give each value of U, by the recurrence of its definition."""
    if not old or not new:
        return (1,)
    found = [0] * (old * new + 1)
    for value, count in enumerate(_mann_whitney(old - 1, new)):
        found[value + new] += count
    for value, count in enumerate(_mann_whitney(old, new - 1)):
        found[value] += count
    return tuple(found)


RULES: dict[str, Rule] = {"threshold": threshold, "Welch": welch, "Kayenta": kayenta}


if __name__ == "__main__":
    sys.exit(main())
