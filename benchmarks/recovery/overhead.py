"""What supervision costs a healthy step: ``python -m benchmarks.recovery.overhead [--pairs N]``.

The same script runs under `keepstep run` and under plain torchrun, in turn. Each run gives one
number, its median step; each pair gives one ratio. A second torchrun run in each round shows how
much the machine alone lets the ratio vary.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.recovery.job import TRAINING, Job, end_on_sigterm
from benchmarks.recovery.marks import READY, MarkReader
from benchmarks.recovery.metrics import step_seconds
from benchmarks.recovery.results import Results, machine, say
from benchmarks.recovery.settings import WORLD_SIZE

SCRIPT = TRAINING / "train_keepstep.py"
BASE = "torchrun"
SKIPPED = 10  # steps after the last process is ready
GOAL = 1.01  # times the base's median step
ENOUGH = 10  # pairs


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


def measure(name: str, steps: int) -> float:
    """Return the median step of one run, in seconds.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory(prefix="keepstep-benchmark-") as folder:
        job = Job(Path(folder))
        try:
            process = job.launch([*VARIANTS[name], SCRIPT, "--steps", str(steps)], "output")
            code = process.wait()
        finally:
            job.close()
        if code != 0:
            text = (Path(folder) / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{name} ended with status {code}:\n{text}")
        marks = MarkReader(Path(folder)).update()
    ready = max(mark.time for mark in marks if mark.event == READY)
    seconds = step_seconds(marks, since=ready, until=time.monotonic(), skip=SKIPPED)
    say(f"{name}: {seconds * 1000:.2f} ms a step")
    return seconds


def ratios(records: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return the variant's median step over the base's, for each round."""
    return [record[name] / record[BASE] for record in records]


def render(records: Sequence[Mapping[str, float]]) -> str:
    """Return the report as Markdown."""
    lines = [
        f"Median step over that of {BASE} in the same round, {len(records)} rounds.",
        "",
        "| variant | median | quartiles | least - greatest | step (ms) |",
        "|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        lines.append(_row(name, ratios(records, name), [record[name] for record in records]))
    return "\n".join([*lines, "", *(goal(records, n) for n in VARIANTS if "keepstep" in n)]) + "\n"


def _row(name: str, found: Sequence[float], seconds: Sequence[float]) -> str:
    low, _, high = statistics.quantiles([*found, *found] if len(found) == 1 else found, n=4)
    return (
        f"| {name} | {statistics.median(found):.4f} | {low:.4f} - {high:.4f} "
        f"| {min(found):.4f} - {max(found):.4f} | {statistics.median(seconds) * 1000:.2f} |"
    )


def goal(records: Sequence[Mapping[str, float]], name: str) -> str:
    """Return whether the variant costs at most one percent."""
    median = statistics.median(ratios(records, name))
    verdict = "met" if median <= GOAL else "missed"
    if len(records) < ENOUGH:
        verdict = f"inconclusive (n = {len(records)}, wanted {ENOUGH})"
    return f"- {name}: at most {(GOAL - 1):.0%}: {verdict}, {median - 1:+.2%}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
