"""Measure analysers: ``python -m benchmarks.diagnosis [--parts ...] [--out FILE]``.

The report is printed on standard output. Results are written after each run; started again with the
same ``--out``, the benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.analysers import TOOLS, TORCHFRTRACE, Tool, warm_torchfrtrace
from benchmarks.diagnosis.answers import Output, mark
from benchmarks.diagnosis.cases import Case, all_cases
from benchmarks.diagnosis.large import write_large
from benchmarks.diagnosis.process import run
from benchmarks.diagnosis.report import ACCURACY, SPEED, render
from benchmarks.recovery.results import Results, machine, say
from tools.environment import ROOT

DATA = ROOT / "tests" / "data" / "recorder"
LIMIT = 900.0  # seconds a run
Ask = Callable[[str, Path], Output]

ENTRIES = 2000  # a rank; torch's default size of the ring buffer


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are missing; print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=(ACCURACY, SPEED), default=[ACCURACY, SPEED])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 64, 256, 1024])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each size")
    parser.add_argument("--dumps", nargs="*", type=Path, default=[], help="more real dumps")
    parser.add_argument("--out", type=Path, default=Path("diagnosis.json"), help="results, as JSON")
    options = parser.parse_args(arguments)

    made_with = {
        **machine(),
        "keepstep": metadata.version("keepstep"),
        "nvidia-resiliency-ext": "0.7.0",
        "entries": ENTRIES,
        "limit": LIMIT,
    }
    try:
        results = Results.open(options.out, made_with)
    except ValueError as error:
        parser.error(str(error))
    tools = [TOOLS[name] for name in options.tools]
    if ACCURACY in options.parts:
        with warm_torchfrtrace() as ask:
            for case in all_cases([DATA, *options.dumps]):
                answer_case(results, case, tools, ask)
    if SPEED in options.parts:
        for ranks in options.ranks:
            time_size(results, ranks, tools, options.repeat)
    print(render(results.made_with, results.records), end="")
    return 0


def answer_case(results: Results, case: Case, tools: Sequence[Tool], torchfrtrace: Ask) -> None:
    """Have each tool answer one case, in all orders of files that it depends on."""
    done = {(r["case"], r["tool"], r["order"]) for r in results.records if r["part"] == ACCURACY}
    wanted = [
        (tool, order)
        for tool in tools
        for order in tool.orders
        if (case.name, tool.name, order) not in done
    ]
    if not wanted:
        return
    say(f"case: {case.name}")
    with tempfile.TemporaryDirectory(prefix="keepstep-diagnosis-") as folder:
        case.lay(Path(folder))
        for tool, order in wanted:
            if tool.name == TORCHFRTRACE:
                output: Output | None = torchfrtrace(order, Path(folder))
            else:
                output = run(tool.command(order, Path(folder)), tool.variables(), LIMIT).output
            head = {"part": ACCURACY, "case": case.name, "kind": case.kind, "truth": case.truth}
            results.add(
                {**head, "tool": tool.name, "order": order, **judged(tool, output, case.truth)}
            )


def time_size(results: Results, ranks: int, tools: Sequence[Tool], repeat: int) -> None:
    """Time each tool on the dumps of one large job; tools take turns."""
    done = {(r["ranks"], r["tool"], r["number"]) for r in results.records if r["part"] == SPEED}
    wanted = [
        (number, tool)
        for number in range(repeat)
        for tool in tools
        if (ranks, tool.name, number) not in done
    ]
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="keepstep-diagnosis-") as folder:
        stalled = write_large(Path(folder), ranks, ENTRIES)
        for number, tool in wanted:
            load = round(os.getloadavg()[0], 2)
            say(f"{tool.name}: {ranks} ranks, run {number} (load {load})")
            head = {"part": SPEED, "ranks": ranks, "tool": tool.name, "number": number}
            made = run(tool.command(tool.orders[0], Path(folder)), tool.variables(), LIMIT)
            used = {"wall": round(made.wall, 3), "cpu": round(made.cpu, 3)}
            results.add(
                {
                    **head,
                    "load": load,
                    **used,
                    "peak_bytes": made.peak_bytes,
                    **judged(tool, made.output, (stalled,)),
                }
            )


def judged(tool: Tool, output: Output | None, truth: Sequence[int]) -> dict[str, Any]:
    """Return what a tool answered, and its mark."""
    if output is None:
        return {"timed_out": True}
    answer = tool.answer(output)
    return {
        "timed_out": False,
        "readings": answer.readings,
        "undecided": answer.undecided,
        "error": answer.error,
        "fault": answer.fault,
        "mark": mark(answer, truth).value,
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
