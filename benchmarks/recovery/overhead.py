"""What supervision costs a healthy step: ``python -m benchmarks.recovery.overhead [--sessions N]``.

The same script runs under `keepstep run` and under plain torchrun, all at once; but one after
another runs for a turn of some seconds while every process of the others is suspended (SIGSTOP).
So a round compares runs within seconds of each other, and a slow spell of the machine does not
pass for a cost. A run keeps the memory that it happened to get, and with it a speed of its own; so
all are started anew in each session, and a session counts once, with the median of its rounds.
There are two torchrun runs: what is told is over their mean, and each of them over it shows how
much the ratios vary by themselves. There are as many ranks as cores,
three at most: with more the scheduler decides how fast a run is.

A turn gives the mean time of its steps, so that what happens once a second counts as well, and the
processor time of all processes, with how much of it was not training: launcher, agent, coordinator,
spare, side threads. What the training thread itself does for supervision is asked for at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recovery.between import read
from benchmarks.recovery.job import TRAINING, Job, end_on_sigterm, processes_of
from benchmarks.recovery.marks import COMMIT, MarkReader
from benchmarks.recovery.metrics import mean_step
from benchmarks.recovery.processor import used
from benchmarks.recovery.results import Results, machine, say
from benchmarks.recovery.settings import WORLD_SIZE as MOST

SCRIPT = TRAINING / "train_keepstep.py"
BASES = ("torchrun", "torchrun again")
ENDLESS = 1_000_000  # steps; the benchmark ends the runs
SKIPPED = 10  # steps of each run before the first turn
SETTLING = 0.5  # seconds of each turn that are not counted: caches fill, those suspended are missed
RANKS = max(2, min(MOST, os.cpu_count() or MOST))
GOAL = 1.01  # times the base's step
ENOUGH = 10  # sessions
LOOK = 0.1  # seconds between two looks at the marks, before and after the turns
STARTING = 120.0  # seconds for a run to begin
WALL, PROCESSOR = "time of a step", "processor time of a step"
BESIDE = "processor time beside training"  # of a step
BETWEEN = "processor time of the training thread between two steps"
GAP = "time between two steps"


def torchrun() -> list[str]:
    """Return the command of a plain run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={RANKS}"]


def keepstep(spares: int) -> list[str]:
    """Return the command of a supervised run."""
    program = str(Path(sys.executable).parent / "keepstep")
    return [program, "run", "--workers", str(RANKS), "--spares", str(spares)]


VARIANTS = {
    "torchrun": torchrun(),
    "keepstep, no spare": keepstep(0),
    "keepstep, 1 spare": keepstep(1),
    "torchrun again": torchrun(),
}


@dataclass(slots=True)
class Runner:
    """One run, suspended except in its turns."""

    name: str
    job: Job
    reader: MarkReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = MarkReader(self.job.folder)

    def begin(self) -> None:
        """Start it, wait until every rank has done its first steps, suspend it.

        Raises:
            RuntimeError: it does not get there.
        """
        self.job.launch([*VARIANTS[self.name], SCRIPT, "--steps", str(ENDLESS)], "output")
        deadline = time.monotonic() + STARTING
        while len(self._ranks()) < RANKS:
            if self.job.ended or time.monotonic() > deadline:
                raise self._failed("did not begin")
            time.sleep(LOOK)
        self._signal(signal.SIGSTOP)

    def _ranks(self) -> set[int]:
        """Return the processes that are a rank and beyond the first steps."""
        marks = self.reader.update()
        return {mark.pid for mark in marks if mark.event == COMMIT and mark.step >= SKIPPED}

    def take_turn(self, seconds: float) -> dict[str, float]:
        """Let it run; return seconds a step.

        Raises:
            RuntimeError: it has ended, or hardly a step was done.
        """
        ranks = self._ranks()
        processes = processes_of(self.job.folder)
        self._signal(signal.SIGCONT)
        time.sleep(SETTLING)
        since, before = time.monotonic(), used(processes, ranks)
        time.sleep(seconds)
        until, after = time.monotonic(), used(processes, ranks)
        self._signal(signal.SIGSTOP)
        if self.job.ended:
            raise self._failed("ended")
        step = mean_step(self.reader.update(), since=since, until=until)
        spent, steps = after.since(before), (until - since) / step
        beside = spent.supervision / steps
        return {WALL: step, PROCESSOR: spent.training / steps + beside, BESIDE: beside}

    def ask_between(self) -> dict[str, float]:
        """Let the ranks say what lies between two of their steps."""
        self._signal(signal.SIGCONT)
        for pid in self._ranks():
            os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + STARTING
        while (found := read(self.job.folder, RANKS)) is None:
            if self.job.ended or time.monotonic() > deadline:
                raise self._failed("did not say what lies between two steps")
            time.sleep(LOOK)
        self._signal(signal.SIGSTOP)
        return dict(zip((BETWEEN, GAP), found, strict=True))

    def end(self) -> None:
        """End it."""
        self._signal(signal.SIGCONT)
        self.job.close()

    def _signal(self, number: signal.Signals) -> None:
        for pid in processes_of(self.job.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _failed(self, what: str) -> RuntimeError:
        text = (self.job.folder / "output").read_text(errors="replace")[-2000:]
        return RuntimeError(f"{self.name} {what}:\n{text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sessions that are missing; print the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery.overhead", description=__doc__
    )
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=6, help="of a session")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each turn")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"), help="results, as JSON")
    options = parser.parse_args(arguments)
    end_on_sigterm()
    try:
        settings = {"ranks": RANKS, "rounds": options.rounds, "seconds": options.seconds}
        results = Results.open(options.out, {**machine(), **settings})
    except ValueError as error:
        parser.error(str(error))
    for number in range(len(results.records), options.sessions):
        results.add(session(number, options.rounds, options.seconds))
    print(render(results.records), end="")
    return 0


def session(number: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the rounds of new runs, and what lies between their steps."""
    with running(in_turn(number)) as runners:
        turns = []
        for each in range(rounds):
            turns.append({name: runners[name].take_turn(seconds) for name in in_turn(each)})
        between = {name: runners[name].ask_between() for name in VARIANTS}
    texts = [f"{name} {_over_base(turns, name, WALL) - 1:+.1%}" for name in VARIANTS]
    say(f"session {number + 1}: {', '.join(texts)}")
    return {"turns": turns, "between": between}


@contextlib.contextmanager
def running(names: Sequence[str]) -> Iterator[dict[str, Runner]]:
    """Start these variants, one after another; end them afterwards."""
    runners: dict[str, Runner] = {}
    with tempfile.TemporaryDirectory(prefix="keepstep-benchmark-") as folder:
        try:
            for number, name in enumerate(names):
                place = Path(folder) / str(number)
                place.mkdir()
                runners[name] = Runner(name, Job(place))
                runners[name].begin()
            yield runners
        finally:
            for runner in runners.values():
                runner.end()


def in_turn(number: int) -> list[str]:
    """Return the variants of a round or session, beginning with another one each time."""
    names = list(VARIANTS)
    start = number % len(names)
    return names[start:] + names[:start]


Round = Mapping[str, Mapping[str, float]]  # by variant, by what was measured
Record = Mapping[str, Any]  # of one session: "turns" a list of rounds, "between" like a round


def _base(turn: Round, what: str) -> float:
    """Return what was measured of both plain runs, their mean."""
    return statistics.fmean(turn[name][what] for name in BASES)


def _over_base(turns: Sequence[Round], name: str, what: str) -> float:
    """Return what was measured of the variant over the base: the median of a session."""
    return statistics.median(each[name][what] / _base(each, what) for each in turns)


def ratios(records: Sequence[Record], name: str, what: str) -> list[float]:
    """Return what was measured of the variant over the base's, for each session."""
    return [_over_base(record["turns"], name, what) for record in records]


def render(records: Sequence[Record]) -> str:
    """Return the report as Markdown."""
    tables = [_table(records, what) for what in (WALL, PROCESSOR)]
    return "\n".join([*tables, _beside(records), _between(records)])


def _between(records: Sequence[Record]) -> str:
    """Return what lies between two steps, as a share of a torchrun step."""
    step = statistics.median(_base(e, WALL) for record in records for e in record["turns"])
    lines = [
        "Between two steps of the slowest rank: processor time of the training thread, and time "
        f"(medians), as a share of the median {WALL} under torchrun.",
        "",
        "| variant | processor time | time |",
        "|---|---|---|",
    ]
    for name in VARIANTS:
        found = [[record["between"][name][what] for record in records] for what in (BETWEEN, GAP)]
        shares = [f"{statistics.median(each) / step:.2%}" for each in found]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def _beside(records: Sequence[Record]) -> str:
    """Return what is not training as a share of the processor time of a torchrun step."""
    lines = [
        f"The {BESIDE}, as a share of all processor time of a step under torchrun.",
        "",
        "| variant | median | quartiles |",
        "|---|---|---|",
    ]
    for name in VARIANTS:
        shares = [
            statistics.median(
                each[name][BESIDE] / _base(each, PROCESSOR) for each in record["turns"]
            )
            for record in records
        ]
        low, middle, high = _quartiles(shares)
        lines.append(f"| {name} | {middle:.2%} | {low:.2%} - {high:.2%} |")
    return "\n".join(lines) + "\n"


def _table(records: Sequence[Record], what: str) -> str:
    rounds = sum(len(record["turns"]) for record in records)
    lines = [
        f"The {what}, over that of torchrun; {len(records)} sessions with {rounds} rounds.",
        "",
        "| variant | median | quartiles | where the median lies (95 %) | ms |",
        "|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        values = [each[name][what] for record in records for each in record["turns"]]
        lines.append(_row(name, ratios(records, name, what), values))
    goals = [goal(records, n, what) for n in VARIANTS if "keepstep" in n]
    return "\n".join([*lines, "", *goals]) + "\n"


def _row(name: str, found: Sequence[float], seconds: Sequence[float]) -> str:
    low, middle, high = _quartiles(found)
    least, greatest = interval(found)
    return (
        f"| {name} | {middle:.4f} | {low:.4f} - {high:.4f} | {least:.4f} - {greatest:.4f} "
        f"| {statistics.median(seconds) * 1000:.2f} |"
    )


def _quartiles(found: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles([*found, *found] if len(found) == 1 else found, n=4)
    return low, middle, high


def interval(found: Sequence[float]) -> tuple[float, float]:
    """Return between which of the values the median lies with a confidence of about 95 %.

    The ranks n/2 -+ 0.98 sqrt(n) (binomial with p = 1/2, normal approximation).
    """
    ordered, half = sorted(found), 0.98 * len(found) ** 0.5
    middle = (len(ordered) - 1) / 2
    low = max(0, math.floor(middle - half))
    high = min(len(ordered) - 1, math.ceil(middle + half))
    return ordered[low], ordered[high]


def goal(records: Sequence[Record], name: str, what: str) -> str:
    """Return whether the variant costs at most one percent."""
    median = statistics.median(ratios(records, name, what))
    verdict = "met" if median <= GOAL else "missed"
    if len(records) < ENOUGH:
        verdict = f"inconclusive (n = {len(records)}, wanted {ENOUGH})"
    return f"- {name}, {what}: at most {(GOAL - 1):.0%} more: {verdict}, {median - 1:+.2%}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
