"""Print what the runs of a rehearsal measured, a line a cell: ``table.py rehearsal.tgz``.

A number for each round: the slower rank's median step without the first five; the median of 4 KiB
and of large all-reduces; memory of this process on its GPU before the first step.
"""

from __future__ import annotations

import json
import statistics
import sys
import tarfile
from typing import Any

SKIPPED = 5


def runs_of(path: str) -> dict[str, list[dict[str, Any]]]:
    """Return cell -> runs, in the order of the rounds."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[1] == "runs" and member.name.endswith(".json"):
                file = archive.extractfile(member)
                assert file is not None
                run = json.load(file)
                found.setdefault(run["cell"], []).append(run)
    return {cell: sorted(runs, key=lambda run: run["pair"]) for cell, runs in found.items()}


def step_ms(run: dict[str, Any]) -> float:
    """Return the slower rank's median step."""
    return max(
        1000 * statistics.median([step["seconds"] for step in rank["steps"]][SKIPPED:])
        for rank in run["ranks"]
    )


def latency_ms(run: dict[str, Any], *, large: bool) -> float | None:
    """Return the slower rank's median of the smallest or the largest all-reduce of the sweep."""
    found = []
    for rank in run["ranks"]:
        swept = [each for each in rank["latencies"] if each["operation"] == "all_reduce"]
        if swept:
            pick = max if large else min
            found.append(1000 * pick(swept, key=lambda each: each["bytes"])["median_s"])
    return max(found) if found else None


def cells(values: list[float | None], digits: int) -> str:
    """Return numbers of all rounds."""
    return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def main() -> None:
    """Print the table."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("| Cell | Step, ms | all-reduce small, ms | large, ms | before step 1, MiB |")
    print("|---|---|---|---|---|")
    for cell, runs in sorted(runs_of(sys.argv[1]).items()):
        first = runs[0]["ranks"][0]
        row = [
            cell,
            cells([step_ms(run) for run in runs], 1),
            cells([latency_ms(run, large=False) for run in runs], 2),
            cells([latency_ms(run, large=True) for run in runs], 1),
            str(first["memory_before_first_step"] >> 20),
        ]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
