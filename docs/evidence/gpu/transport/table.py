"""Print the table of README.md: ``table.py results.json``."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Print it."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    report: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    print(f"torch {report['torch']}, {report['gpus']} x {report['gpu']}\n")
    print("| MiB | way | whole, s | of it at the donor, s | GiB/s | equal |")
    print("|---|---|---|---|---|---|")
    for size in sorted({run["mib"] for run in report["runs"]}):
        for way in ("tcp", "nixl", "direct"):
            runs = [r for r in report["runs"] if r["mib"] == size and r["way"] == way]
            times = [run["whole_s"] for run in runs if run.get("equal")]
            donors = [run["donor_s"] for run in runs if run.get("equal")]
            middle = statistics.median(times)
            spread = f"{middle:.2f} ({min(times):.2f} to {max(times):.2f})"
            rate = size / 1024 / middle
            equal = f"{len(times)} of {len(runs)}"
            donor = statistics.median(donors)
            print(f"| {size} | {way} | {spread} | {donor:.2f} | {rate:.2f} | {equal} |")


if __name__ == "__main__":
    main()
