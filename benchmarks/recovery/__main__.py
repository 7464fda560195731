"""Measure recovery: ``python -m benchmarks.recovery [--faults N] [--systems ...] [--out FILE]``.

The report is printed on standard output. Results are written after each fault; started again with
the same ``--out``, the benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recovery import ours, torchft, torchrun
from benchmarks.recovery.job import end_on_sigterm
from benchmarks.recovery.report import KINDS, render
from benchmarks.recovery.results import Results, machine, say
from benchmarks.recovery.trial import NO_FAULT, Plan, TrialError, perform

SYSTEMS = {
    system.name: system
    for system in (ours.SYSTEM, torchrun.SYSTEM, torchft.AS_README, torchft.AS_TUNED)
}
ATTEMPTS = 5  # a fault that fell into the exchange of gradients is repeated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are missing; print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--faults", type=int, default=10, help="of each kind, for each system")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, default=Path("recovery.json"), help="results, as JSON")
    options = parser.parse_args(arguments)
    end_on_sigterm()

    settings = {name: dict(system.settings) for name, system in SYSTEMS.items()}
    try:
        results = Results.open(options.out, {**machine(), "settings": settings})
    except ValueError as error:
        parser.error(str(error))
    done = {(r["system"], r["kind"], r["number"]) for r in results.records}
    for plan in plans(options.systems, options.kinds, options.faults):
        if (plan.system.name, plan.kind, plan.number) not in done:
            results.add(record(plan))
    print(render(results.made_with, results.records), end="")
    return 0


def plans(systems: Sequence[str], kinds: Sequence[str], faults: int) -> Iterator[Plan]:
    """Yield the trials: systems take turns, so that a busy spell of the machine hits all."""
    for name in systems:
        yield Plan(system=SYSTEMS[name], kind=NO_FAULT, number=0)
    for number in range(faults):
        for kind in kinds:
            for name in systems:
                yield Plan(system=SYSTEMS[name], kind=kind, number=number)


def record(plan: Plan) -> dict[str, Any]:
    """Return the record of one trial, also of one that failed."""
    head = {"system": plan.system.name, "kind": plan.kind, "number": plan.number}
    load = round(os.getloadavg()[0], 2)
    say(f"{plan.system.name}: {plan.kind} {plan.number} (load {load})")
    try:
        for attempt in range(1, ATTEMPTS + 1):
            found = perform(plan)
            if not found.get("in_exchange"):
                return {**head, "attempts": attempt, "load": load, **found}
    except TrialError as error:
        say(str(error))
        return {**head, "load": load, "error": str(error)}
    return {**head, "load": load, "error": f"{ATTEMPTS} faults fell into the exchange"}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
