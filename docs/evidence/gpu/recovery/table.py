"""Print a table of docs/evidence/gpu/recovery/README.md from results.json or two_cards.json.

python docs/evidence/gpu/recovery/table.py docs/evidence/gpu/recovery/results.json
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

TOLD = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")  # they change what is said, not what is done


def rows_of(report: dict[str, Any]) -> list[list[str]]:
    """Return one row for each kind of run: medians and the worst."""
    wanted = report["runs"][0]["summary"]["state_sha256"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in report["runs"][1:]:
        found = run["summary"]["recoveries"]
        action = found[0]["action"] if found else "none needed"
        if action == "replace" and "wait" in run.get("extra", ()):
            action = "replace, after a wait for a new process"
        groups.setdefault((name_of(run), action), []).append(run)
    return [[*key, *describe(runs, wanted)] for key, runs in groups.items()]


def name_of(run: dict[str, Any]) -> str:
    """Return the faults of a run and what else was special about it."""
    special = [name for name, _ in sorted(run["variables"].items()) if name not in TOLD]
    if run["script"] != "jobs/bytelm.py":
        special.append(run["script"])
    return " + ".join(run["faults"]) + (f" ({', '.join(special)})" if special else "")


def describe(runs: list[dict[str, Any]], wanted: str) -> list[str]:
    """Return number, detection, next step (median, worst), equality."""
    equal = sum(run["summary"]["state_sha256"] == wanted for run in runs)
    comparable = runs[0]["script"] == "jobs/bytelm.py"
    equality = f"{equal} of {len(runs)}" if comparable else "-"
    entries = [run["summary"]["recoveries"][0] for run in runs if run["summary"]["recoveries"]]
    if not entries:
        return [str(len(runs)), "-", "-", "-", equality, evidence_of(runs)]
    seen = [entry["detected_after_s"] for entry in entries]
    after = [entry["next_step_after_s"] for entry in entries]
    beyond = [entry["next_step_after_s"] - entry["detected_after_s"] for entry in entries]
    return [
        str(len(runs)),
        f"{statistics.median(seen):.2f}",
        f"{statistics.median(after):.2f} ({min(after):.2f} to {max(after):.2f})",
        f"{statistics.median(beyond):.2f}",
        equality,
        evidence_of(runs),
    ]


def evidence_of(runs: list[dict[str, Any]]) -> str:
    """Return how many recorder dumps arrived of those that were due, and the verdicts."""
    incidents = [incident for run in runs for incident in run["incidents"]]
    if not incidents:
        return "-"
    due = [entry for each in incidents for entry in each["artifacts"]]
    dumps = [entry for entry in due if entry["kind"] == "recorder dump"]
    arrived = sum(bool(entry["file"]) for entry in dumps)
    told = {f"{each['verdict']['fault']} {each['verdict']['ranks']}" for each in incidents}
    return f"{arrived} of {len(dumps)}; {', '.join(sorted(told))}"


def main() -> None:
    """Print the table as Markdown."""
    report = json.loads(Path(sys.argv[1]).read_text())
    print(", ".join(f"{name} {value}" for name, value in report["environment"].items()))
    heads = ["fault", "action", "runs", "noticed after, s", "next step after, s (range)",
             "of which recovery, s", "state equal", "dumps; verdict"]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows_of(report):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
