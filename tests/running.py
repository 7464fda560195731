"""Run ``keepstep run`` as a user would and look at what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEEPSTEP = str(Path(sys.executable).parent / "keepstep")
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
BYTELM = "jobs/bytelm.py"
LIMIT = 300.0  # seconds; a run of these tests takes 20 to 50 on two idle cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One finished run."""

    exit_code: int
    output: str
    summary: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def faults(self) -> list[tuple[str, int | None, str]]:
        """What happened: (fault, rank, action), in order."""
        return [(r["fault"], r["rank"], r["action"]) for r in self.summary["recoveries"]]

    @property
    def digest(self) -> str:
        """SHA-256 of the final state."""
        return str(self.summary["state_sha256"])

    def of_kind(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [event for event in self.events if event["event"] == name]


def command(folder: Path, *options: str, script: tuple[str, ...]) -> list[str]:
    """The command line of a run that leaves summary and events in ``folder``."""
    return [
        KEEPSTEP, "run", "--backend", "gloo",
        "--summary", str(folder / "summary.json"), "--events", str(folder / "events.jsonl"),
        "--incidents", str(folder / "incidents"),
        *options, *script,
    ]  # fmt: skip


def run(folder: Path, *options: str, script: tuple[str, ...], limit: float = LIMIT) -> Run:
    """Run to the end."""
    done = subprocess.run(
        command(folder, *options, script=script),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return collect(folder, done.returncode, done.stdout)


def collect(folder: Path, exit_code: int, output: str) -> Run:
    """Read what a run left in ``folder``."""
    summary, events = folder / "summary.json", folder / "events.jsonl"
    return Run(
        exit_code=exit_code,
        output=output,
        summary=json.loads(summary.read_text()) if summary.exists() else {},
        events=(
            [json.loads(line) for line in events.read_text().splitlines()]
            if events.exists()
            else []
        ),
    )


def inject(*faults: str) -> list[str]:
    """Options that plan ``faults``."""
    return [part for fault in faults for part in ("--inject", fault)]


def processes_of(parent: int) -> list[int]:
    """Every living process that ``parent`` started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [parent]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def environment(**changes: str) -> dict[str, str]:
    """The present environment with changes."""
    return {**os.environ, **changes}
