"""Measure the control plane: ``python -m benchmarks.control_plane [--agents N ...] [--out FILE]``.

One real coordinator process serves simulated agents over authenticated channels on the loopback
interface. They answer its orders as agents and workers do and send one progress record a second.
Then faults strike, one after another; measured is how long the coordinator takes to tell all, and
what processor time it uses for that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.control_plane.agent import PATIENCE
from benchmarks.control_plane.crowd import SETTLE, Crowd
from benchmarks.control_plane.process import Coordinator
from benchmarks.control_plane.report import render
from keepstep.runtime.settings import Settings

STALL_EVERY = 5  # each fifth fault is a stopped process that the coordinator has to find
IDLE = 10.0  # seconds over which the cost of progress records alone is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is measured."""

    agents: int
    workers: int
    faults: int
    rate: float
    together: bool
    profile: Path | None = None


def measure(plan: Plan) -> dict[str, Any]:
    """Return the record of one measurement."""
    settings = Settings(
        workers=plan.workers - 1,
        spares=1,
        min_agents=plan.agents,
        max_agents=plan.agents,
        patience=PATIENCE,
        max_recoveries=10 * plan.faults + 10,
    )
    with tempfile.TemporaryDirectory(prefix="keepstep-control-plane-") as folder:
        coordinator = Coordinator.start(Path(folder), settings, plan.profile)
        crowd = Crowd(coordinator, plan.agents, plan.workers - 1, 1, plan.rate, plan.together)
        try:
            return _drive(plan, crowd, coordinator)
        finally:
            coordinator.stop()
            crowd.close()


def _drive(plan: Plan, crowd: Crowd, coordinator: Coordinator) -> dict[str, Any]:
    began = time.monotonic()
    crowd.join()
    joined, joining_cpu = time.monotonic() - began, coordinator.cpu
    say(f"{plan.agents} agents: all joined and formed after {joined:.1f} s")
    crowd.rest(2 * SETTLE)
    crowd.quiet()
    beats, used, since = crowd.beats, coordinator.cpu, time.monotonic()
    own = time.process_time()
    crowd.rest(IDLE)
    seconds = time.monotonic() - since
    idle = (coordinator.cpu - used) / seconds
    own_idle = (time.process_time() - own) / seconds
    rate = (crowd.beats - beats) / seconds
    say(f"{plan.agents} agents: {rate:.0f} progress records a second take {idle:.0%} of a core")
    faults = [_fault(number, crowd, coordinator) for number in range(plan.faults)]
    moments = coordinator.moments("form")
    for fault in faults:
        fault["form_sent"] = moments[fault["generation"]] - fault["wall"]
    return {
        "agents": plan.agents,
        "workers": plan.workers,
        "together": plan.together,
        "beats_per_s": rate,
        "join_s": joined,
        "join_cpu_s": joining_cpu,
        "idle_cpu": idle,
        "idle_cpu_of_agents": own_idle,
        "peak_bytes": coordinator.peak_memory,
        "journal_bytes": coordinator.journal_bytes,
        "unasked": crowd.generation - 1 - len(faults),
        "halt_bytes": crowd.halt_bytes,
        "form_bytes": crowd.form_bytes,
        "load": os.getloadavg()[0],
        "faults": faults,
    }


def _fault(number: int, crowd: Crowd, coordinator: Coordinator) -> dict[str, Any]:
    """Let one random member fail; return what it took to tell all agents."""
    crowd.rest(SETTLE)
    crowd.quiet()
    generation = crowd.generation + 1
    stall = number % STALL_EVERY == STALL_EVERY - 1
    used, own, beats = coordinator.cpu, time.process_time(), crowd.beats
    wall, began = time.time(), time.monotonic()
    if stall:
        crowd.stop()
    else:
        crowd.kill()
    crowd.until(lambda: len(crowd.forms.get(generation, ())) == crowd.size)
    used, own = coordinator.cpu - used, time.process_time() - own
    halts = [moment - began for moment in crowd.halts.pop(generation)]
    forms = [moment - began for moment in crowd.forms.pop(generation)]
    if number % 10 == 9:
        say(f"{crowd.size} agents: fault {number + 1}, {max(forms):.2f} s to the last form")
    return {
        "kind": "stop" if stall else "kill",
        "generation": generation,
        "wall": wall,
        "cpu": used,
        "cpu_of_agents": own,
        "beats": crowd.beats - beats,
        "halt_last": max(halts),
        "form_last": max(forms),
    }


def say(text: str) -> None:
    """Tell about progress; standard output is for the report alone."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each size; print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_plane", description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[200, 1000, 2000])
    parser.add_argument("--workers", type=int, default=8, help="of each agent, one is a spare")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1.0, help="progress records a second")
    parser.add_argument(
        "--apart", action="store_true", help="each worker's answer comes in a frame of its own"
    )
    parser.add_argument("--out", type=Path, default=Path("control-plane.json"))
    parser.add_argument("--profile", type=Path, help="have cProfile write here (it slows down)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)  # so that the coordinator's files do not outlive us
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    records = []
    for agents in options.agents:
        plan = Plan(
            agents=agents,
            workers=options.workers,
            faults=options.faults,
            rate=options.rate,
            together=not options.apart,
            profile=options.profile,
        )
        records.append(measure(plan))
        options.out.write_text(json.dumps(records, indent=1) + "\n")
    print(render(records), end="")
    return 0


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
