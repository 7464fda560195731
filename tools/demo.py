"""``make demo``: a small GPT loses two ranks and ends as if nothing had happened.

    python tools/demo.py [--steps N] [--seed S]

Trains jobs/bytelm.py on three processes with one warm spare, kills rank 1 with SIGKILL at step 40
and stops rank 2 with SIGSTOP at step 80; then trains the same job undisturbed and compares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
KEEPSTEP = Path(sys.executable).parent / "keepstep"


def train(faults: list[str], spares: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job and return its summary."""
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        command = [
            str(KEEPSTEP), "run", "--workers", "3", "--spares", str(spares), "--backend", "gloo",
            "--summary", str(summary), *(part for f in faults for part in ("--inject", f)),
            "jobs/bytelm.py", "--steps", str(options.steps), "--seed", str(options.seed),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)
        found: dict[str, Any] = json.loads(summary.read_text())
        return found


def table_of(recoveries: list[dict[str, Any]]) -> Table:
    """Return what was lost and how long it took."""
    table = Table(title="What was lost")
    for name in ("fault", "rank", "at step", "noticed after", "next step after", "steps lost"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for entry in recoveries:
        table.add_row(
            {"kill": "SIGKILL", "stop": "SIGSTOP"}.get(entry["fault"], entry["fault"]),
            str(entry["rank"]),
            str(entry["step"]),
            f"{entry['detected_after_s']:.2f} s",
            f"{entry['next_step_after_s']:.2f} s",
            str(entry["lost_steps"]),
        )
    return table


def main() -> None:
    """Run twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console, began = Console(), time.monotonic()
    console.print("[bold]1. With faults[/]: rank 1 is killed at step 40, rank 2 stopped at step 80")
    disturbed = train(["kill@40:1", "stop@80:2"], 1, options)
    console.print("[bold]2. Undisturbed[/]: the same job, nothing happens")
    plain = train([], 0, options)
    console.print(table_of(disturbed["recoveries"]))
    same = disturbed["state_sha256"] == plain["state_sha256"]
    console.print(f"final state with faults   {disturbed['state_sha256']}", soft_wrap=True)
    console.print(f"final state undisturbed   {plain['state_sha256']}", soft_wrap=True)
    console.print(
        f"{'bit-identical' if same else 'DIFFERENT'}; samples lost {disturbed['samples_lost']}, "
        f"repeated {disturbed['samples_repeated']}; {time.monotonic() - began:.0f} s for both runs"
    )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
