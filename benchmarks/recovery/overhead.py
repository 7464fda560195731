"""What supervision costs a healthy step: ``python -m benchmarks.recovery.overhead [--pairs N]``.

The same script runs under `keepstep run` and under plain torchrun, in turn. Each run gives its
median step, the processor time that all its processes used for one step, and how much of that was
not training: launcher, agent, coordinator, spare, side threads. A second torchrun run in each round
shows how much the machine alone lets the ratios vary. The third number is hardly disturbed by other
work on the machine; what the training thread itself does for supervision is the fourth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.recovery.between import read
from benchmarks.recovery.job import TRAINING, Job, end_on_sigterm, processes_of
from benchmarks.recovery.marks import COMMIT, READY, MarkReader
from benchmarks.recovery.metrics import step_seconds
from benchmarks.recovery.processor import Used, used
from benchmarks.recovery.results import Results, machine, say
from benchmarks.recovery.settings import WORLD_SIZE

SCRIPT = TRAINING / "train_keepstep.py"
BASE = "torchrun"
SKIPPED = 10  # steps after the last process is ready
GOAL = 1.01  # times the base's median step
ENOUGH = 10  # pairs
LOOK = 0.1  # seconds between two looks at the marks
WALL, PROCESSOR = "median step", "processor time of a step"
BESIDE = "processor time beside training"  # of a step
BETWEEN = "processor time of the training thread between two steps"
GAP = "time between two steps"


def torchrun() -> list[str]:
    """Return the command of a plain run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={WORLD_SIZE}"]


def keepstep(spares: int) -> list[str]:
    """Return the command of a supervised run."""
    program = str(Path(sys.executable).parent / "keepstep")
    return [program, "run", "--workers", str(WORLD_SIZE), "--spares", str(spares)]


VARIANTS = {
    BASE: torchrun(),
    "keepstep, no spare": keepstep(0),
    "keepstep, 1 spare": keepstep(1),
    "torchrun again": torchrun(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds that are missing; print the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery.overhead", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"), help="results, as JSON")
    options = parser.parse_args(arguments)
    end_on_sigterm()
    try:
        results = Results.open(options.out, {**machine(), "steps": options.steps})
    except ValueError as error:
        parser.error(str(error))
    for number in range(len(results.records), options.pairs):
        results.add({name: measure(name, options.steps) for name in in_turn(number)})
    print(render(results.records), end="")
    return 0


def in_turn(number: int) -> list[str]:
    """Return the variants of a round, beginning with another one each time."""
    names = list(VARIANTS)
    start = number % len(names)
    return names[start:] + names[:start]


def measure(name: str, steps: int) -> dict[str, float]:
    """Return the median step of one run, and the processor time of a step, in seconds.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory(prefix="keepstep-benchmark-") as folder:
        job, reader = Job(Path(folder)), MarkReader(Path(folder))
        try:
            process = job.launch([*VARIANTS[name], SCRIPT, "--steps", str(steps)], "output")
            first = look(job, reader, SKIPPED)
            last = look(job, reader, steps - SKIPPED)
            code = process.wait()
        finally:
            job.close()
        if code != 0 or first is None or last is None:
            text = (Path(folder) / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{name} ended with status {code}:\n{text}")
        marks = reader.update()
        between, gap = read(Path(folder))
    ready = max(mark.time for mark in marks if mark.event == READY)
    seconds = step_seconds(marks, since=ready, until=time.monotonic(), skip=SKIPPED)
    steps_between, spent = last[0] - first[0], last[1].since(first[1])
    beside = spent.supervision / steps_between
    processor = spent.training / steps_between + beside
    say(
        f"{name}: {seconds * 1000:.2f} ms a step, {processor * 1000:.2f} ms of processor time, "
        f"{beside * 1000:.2f} ms of it beside training, {between * 1000:.3f} ms between two steps"
    )
    return {
        WALL: seconds,
        PROCESSOR: processor,
        BESIDE: beside,
        BETWEEN: between,
        GAP: gap,
    }


def look(job: Job, reader: MarkReader, step: int) -> tuple[int, Used] | None:
    """Wait until every rank has committed ``step``; return the step then reached and the time used.

    None: the run ended before.
    """
    while not job.ended:
        commits = [mark for mark in reader.update() if mark.event == COMMIT]
        newest = {mark.rank: mark.step for mark in commits}
        if len(newest) == WORLD_SIZE and min(newest.values()) >= step:
            ranks = {mark.pid for mark in commits}
            return min(newest.values()), used(processes_of(job.folder), ranks)
        time.sleep(LOOK)
    return None


Round = Mapping[str, Mapping[str, float]]  # by variant, by what was measured


def ratios(records: Sequence[Round], name: str, what: str) -> list[float]:
    """Return what was measured of the variant over the base's, for each round."""
    return [record[name][what] / record[BASE][what] for record in records]


def render(records: Sequence[Round]) -> str:
    """Return the report as Markdown."""
    tables = [_table(records, what) for what in (WALL, PROCESSOR)]
    return "\n".join([*tables, _beside(records), _between(records)])


def _between(records: Sequence[Round]) -> str:
    """Return what lies between two steps, as a share of a torchrun step."""
    lines = [
        f"Between two steps of the slowest rank: processor time of the training thread, and time; "
        f"as a share of the {WALL} under {BASE}.",
        "",
        "| variant | processor time | least - greatest | time | least - greatest |",
        "|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        cells = []
        for what in (BETWEEN, GAP):
            shares = [record[name][what] / record[BASE][WALL] for record in records]
            middle = statistics.median(shares)
            cells += [f"{middle:.2%}", f"{min(shares):.2%} - {max(shares):.2%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _beside(records: Sequence[Round]) -> str:
    """Return what is not training as a share of the processor time of a torchrun step."""
    lines = [
        f"The {BESIDE}, as a share of all processor time of a step under {BASE}.",
        "",
        "| variant | median | least - greatest |",
        "|---|---|---|",
    ]
    for name in VARIANTS:
        shares = [record[name][BESIDE] / record[BASE][PROCESSOR] for record in records]
        middle = statistics.median(shares)
        lines.append(f"| {name} | {middle:.2%} | {min(shares):.2%} - {max(shares):.2%} |")
    return "\n".join(lines) + "\n"


def _table(records: Sequence[Round], what: str) -> str:
    lines = [
        f"The {what}, over that of {BASE} in the same round; {len(records)} rounds.",
        "",
        "| variant | median | quartiles | least - greatest | ms |",
        "|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        values = [record[name][what] for record in records]
        lines.append(_row(name, ratios(records, name, what), values))
    goals = [goal(records, n, what) for n in VARIANTS if "keepstep" in n]
    return "\n".join([*lines, "", *goals]) + "\n"


def _row(name: str, found: Sequence[float], seconds: Sequence[float]) -> str:
    low, _, high = statistics.quantiles([*found, *found] if len(found) == 1 else found, n=4)
    return (
        f"| {name} | {statistics.median(found):.4f} | {low:.4f} - {high:.4f} "
        f"| {min(found):.4f} - {max(found):.4f} | {statistics.median(seconds) * 1000:.2f} |"
    )


def goal(records: Sequence[Round], name: str, what: str) -> str:
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
