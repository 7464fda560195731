"""Measure recoveries with NCCL: on one GPU, which several ranks share, or on two with their link.

    python docs/evidence/gpu/recovery/measure.py OUT.json [--cards N] [--repeats N]
        [--incidents DIR]

Needs PyTorch 2.15 with CUDA and the ``keepstep`` command's module on the path. Each row is one
``keepstep run`` of jobs/bytelm.py; results are written after every run. With ``--incidents DIR``
what each fault left is kept there, one folder a run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
STEPS = 60
FAULTS = ["kill@30:1", "stop@30:1", "hang@30:2", "gil@30:1", "raise@30:1", "segv@30:0", "exit@30:2"]
DOUBLE = ["kill@30:1", "kill@30:2"]
BY_NAME = ["kill@30:spare", "kill@30:coordinator"]
LINK = re.compile(r"via (P2P/\S+|NET/\S+|SHM/\S+)")  # what NCCL says of a channel when asked
FAST_PATH = {"TORCH_NCCL2_RECONFIGURE_SHRINK_GROW": "1"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run."""

    faults: list[str]
    workers: int = 3
    spares: int = 1
    extra: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    script: tuple[str, ...] = ("jobs/bytelm.py", "--steps", str(STEPS))


def plan(repeats: int) -> Iterator[Row]:
    """Yield what is run, the most important first."""
    yield Row(faults=[], spares=0)
    for fault in FAULTS:
        yield Row(faults=[fault])
    yield Row(faults=DOUBLE, spares=2)
    yield Row(faults=["kill@30:1"], spares=0, extra=("--on-loss", "shrink"))
    for fault in BY_NAME:
        yield Row(faults=[fault])
    yield Row(faults=["kill@30:1"], variables=FAST_PATH)
    yield Row(faults=["hang@30:1"], script=("tests/jobs/groups.py", str(STEPS)))
    for _ in range(repeats - 1):
        yield Row(faults=["kill@30:1"])
        yield Row(faults=["stop@30:1"])
        yield Row(faults=["kill@30:1"], variables=FAST_PATH)


def plan_for_two(repeats: int) -> Iterator[Row]:
    """Yield what is run where each of two workers has a card and a spare shares the first."""
    told = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,P2P,NET"}
    wait = ("--on-loss", "wait")
    yield Row(workers=2, faults=[], spares=0)
    yield Row(workers=2, faults=["raise@30:1"], variables=told)
    yield Row(workers=2, faults=["kill@30:0"], variables=told)
    yield Row(workers=2, faults=["kill@30:1"], spares=0, extra=wait, variables=told)
    yield Row(workers=2, faults=["hang@30:1"], spares=0, extra=("--on-loss", "shrink"))
    yield Row(workers=2, faults=["kill@30:1"], spares=0, extra=("--on-loss", "shrink"))
    for _ in range(repeats):
        yield Row(workers=2, faults=["raise@30:1"])
        yield Row(workers=2, faults=["kill@30:0"])
        yield Row(workers=2, faults=["stop@30:0"])
        yield Row(workers=2, faults=["kill@30:1"], spares=0, extra=wait)


def run_once(row: Row, incidents: Path) -> dict[str, Any]:
    """Return the summary of one run, with its exit code and the tail of its output."""
    with tempfile.TemporaryDirectory() as folder:
        summary, events = Path(folder) / "summary.json", Path(folder) / "events.jsonl"
        command = [
            sys.executable, "-c", "from keepstep.cli.main import main; main()",
            "run", "--backend", "nccl", "--workers", str(row.workers), "--spares", str(row.spares),
            "--summary", str(summary), "--events", str(events), "--incidents", str(incidents),
            *row.extra, *(part for fault in row.faults for part in ("--inject", fault)),
            *row.script,
        ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **row.variables},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        facts = json.loads(summary.read_text()) if summary.exists() else {}
        tail = (done.stdout + done.stderr)[-3000:]
        return {
            "faults": row.faults,
            "script": row.script[0],
            "variables": row.variables,
            "extra": [f"--workers={row.workers}", f"--spares={row.spares}", *row.extra],
            "links": dict(Counter(LINK.findall(done.stdout + done.stderr))),
            "exit_code": done.returncode,
            "wall_s": round(time.monotonic() - began, 1),
            "summary": facts,
            "timeline": timeline(events),
            "incidents": [left_of(path) for path in sorted(incidents.rglob("manifest.json"))],
            "output_tail": tail if done.returncode else "",
        }


def left_of(manifest: Path) -> dict[str, Any]:
    """Return which artifacts of an incident arrived, which did not and why, and the verdict."""
    facts = json.loads(manifest.read_text())
    verdicts = sorted(manifest.parents[1].rglob("verdict.json"))
    told = json.loads(verdicts[0].read_text()) if verdicts else {}
    keys = ("kind", "file", "size", "reason", "how")
    return {
        "incident": facts["incident"],
        "artifacts": [
            {"rank": member["rank"], **{key: artifact[key] for key in keys}}
            for member in facts["members"]
            for artifact in member["artifacts"]
        ],
        "lives": {member["rank"]: member["life"] for member in facts["members"]},
        "verdict": {key: told.get(key) for key in ("verdict", "ranks", "fault", "headline")},
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
        "incident",
        "verdict",
    }
    keys = ("event", "rank", "reconfigure_s", "state_s", "headline")
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
    parser.add_argument("--cards", type=int, choices=(1, 2), default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--incidents", type=Path, help="keep what the faults left here")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report: dict[str, Any] = {"environment": environment(), "runs": []}
    kept = options.incidents or Path(tempfile.mkdtemp())
    rows = plan_for_two if options.cards == 2 else plan
    for number, row in enumerate(rows(options.repeats)):
        if time.monotonic() > deadline:
            break
        report["runs"].append(run_once(row, kept / f"run-{number:02}"))
        options.out.write_text(json.dumps(report, indent=1))
        print(json.dumps(report["runs"][-1])[:600], flush=True)


if __name__ == "__main__":
    main()
