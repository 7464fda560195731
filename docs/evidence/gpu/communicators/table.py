"""Print the tables of ``results.json``, which ``measure.py`` wrote, as Markdown.

python docs/evidence/gpu/communicators/table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results.json"


def memory(runs: list[dict[str, Any]]) -> None:
    """MiB in use on the card of rank 0, and the seconds of each step."""
    steps = [what for what, _, _ in runs[0]["ranks"][0]["rows"]]
    print(f"| spelling | built | {' | '.join(steps)} |")
    print(f"|---|---|{'---|' * len(steps)}")
    for run in runs:
        first = run["ranks"][0]
        cells = [f"{used} ({took:.2f})" for _, used, took in first["rows"]]
        print(f"| {run['spelling']} | {first['built']} | {' | '.join(cells)} |")


def refusals(runs: list[dict[str, Any]]) -> None:
    """Exit code and last words of each rank; equal ones once."""
    print("| what | spelling | exit | last words |\n|---|---|---|---|")
    for run in runs:
        said = [line for rank in run["ranks"] for line in (rank["error"] or rank["out"])[-1:]]
        exits = dict.fromkeys(str(rank["exit"]) for rank in run["ranks"])
        words = dict.fromkeys(line.removeprefix("[rank0]: ").strip() for line in said)
        print(
            f"| {run['case']} | {run['spelling']} | {', '.join(exits)}"
            f" | {'; '.join(f'`{each}`' for each in words)} |"
        )


def main() -> None:
    """Both tables."""
    report = json.loads(RESULTS.read_text())
    print(f"torch {report['torch']}, nccl {report['nccl']}, {', '.join(report['gpus'])}\n")
    memory(report["memory"])
    print()
    refusals(report["refusals"])


if __name__ == "__main__":
    main()
