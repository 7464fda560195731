"""Measure recoveries with NCCL on one GPU: several ranks share the card, each a host to NCCL.

    python docs/evidence/gpu-recovery/measure.py OUT.json [--repeats N] [--seconds LIMIT]

Needs PyTorch 2.15 with CUDA and the ``keepstep`` command's module on the path. Each row is one
``keepstep run`` of jobs/bytelm.py; results are written after every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STEPS = 60
FAULTS = ["kill@30:1", "stop@30:1", "hang@30:2", "gil@30:1", "raise@30:1", "segv@30:0", "exit@30:2"]
DOUBLE = ["kill@30:1", "kill@30:2"]


def run_once(faults: list[str], spares: int, extra: list[str]) -> dict[str, Any]:
    """Return the summary of one run, with its exit code and the tail of its output."""
    with tempfile.TemporaryDirectory() as folder:
        summary, events = Path(folder) / "summary.json", Path(folder) / "events.jsonl"
        command = [
            sys.executable, "-c", "from keepstep.cli.main import main; main()",
            "run", "--backend", "nccl", "--workers", "3", "--spares", str(spares),
            "--summary", str(summary), "--events", str(events), *extra,
            *(part for fault in faults for part in ("--inject", fault)),
            "jobs/bytelm.py", "--steps", str(STEPS),
        ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
        )
        facts = json.loads(summary.read_text()) if summary.exists() else {}
        tail = (done.stdout + done.stderr)[-3000:]
        return {
            "faults": faults,
            "exit_code": done.returncode,
            "wall_s": round(time.monotonic() - began, 1),
            "summary": facts,
            "timeline": timeline(events),
            "output_tail": tail if done.returncode else "",
        }


def timeline(events: Path) -> list[dict[str, Any]]:
    """Return what happened from the first fault on, times in seconds after it."""
    facts = [json.loads(line) for line in events.read_text().splitlines()]
    start = next((f["time"] for f in facts if f["event"] == "fault_injected"), None)
    if start is None:
        return []
    wanted = {
        "fault_injected",
        "worker_exited",
        "stall",
        "halt",
        "form",
        "member_formed",
        "resumed",
    }
    keys = ("event", "rank", "reconfigure_s", "state_s")
    return [
        {"at_s": round(f["time"] - start, 3), **{k: f[k] for k in keys if k in f}}
        for f in facts
        if f["event"] in wanted and f["time"] >= start
    ]


def environment() -> dict[str, Any]:
    """Return what the numbers depend on."""
    import torch

    return {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "gpu": torch.cuda.get_device_name(0),
        "cpus": os.cpu_count(),
    }


def main() -> None:
    """Run everything that fits into the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    plan: list[tuple[list[str], int, list[str]]] = [([], 0, [])]
    plan += [([fault], 1, []) for fault in FAULTS]
    plan += [(DOUBLE, 2, []), (["kill@30:1"], 0, ["--on-loss", "shrink"])]
    plan += [([fault], 1, []) for _ in range(options.repeats - 1) for fault in FAULTS[:2]]
    report: dict[str, Any] = {"environment": environment(), "runs": []}
    for faults, spares, extra in plan:
        if time.monotonic() > deadline:
            break
        report["runs"].append(run_once(faults, spares, extra))
        options.out.write_text(json.dumps(report, indent=1))
        print(json.dumps(report["runs"][-1])[:600], flush=True)


if __name__ == "__main__":
    main()
