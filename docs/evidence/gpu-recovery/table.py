"""Print the table of docs/evidence/gpu-recovery/README.md from results.json.

python docs/evidence/gpu-recovery/table.py docs/evidence/gpu-recovery/results.json
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any


def rows_of(report: dict[str, Any]) -> list[list[str]]:
    """Return one row for each kind of run: medians and the worst."""
    wanted = report["runs"][0]["summary"]["state_sha256"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in report["runs"][1:]:
        action = run["summary"]["recoveries"][0]["action"]
        groups.setdefault((" + ".join(run["faults"]), action), []).append(run)
    return [[*key, *describe(runs, wanted)] for key, runs in groups.items()]


def describe(runs: list[dict[str, Any]], wanted: str) -> list[str]:
    """Return number, detection, next step (median, worst), equality."""
    entries = [run["summary"]["recoveries"][0] for run in runs]
    seen = [entry["detected_after_s"] for entry in entries]
    after = [entry["next_step_after_s"] for entry in entries]
    beyond = [entry["next_step_after_s"] - entry["detected_after_s"] for entry in entries]
    equal = sum(run["summary"]["state_sha256"] == wanted for run in runs)
    return [
        str(len(runs)),
        f"{statistics.median(seen):.2f}",
        f"{statistics.median(after):.2f} ({min(after):.2f} to {max(after):.2f})",
        f"{statistics.median(beyond):.2f}",
        f"{equal} of {len(runs)}",
    ]


def main() -> None:
    """Print the table as Markdown."""
    report = json.loads(Path(sys.argv[1]).read_text())
    print(", ".join(f"{name} {value}" for name, value in report["environment"].items()))
    heads = ["fault", "action", "runs", "noticed after, s", "next step after, s (range)",
             "of which recovery, s", "state equal"]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows_of(report):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
