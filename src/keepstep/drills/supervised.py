"""A job under ``keepstep run``, its workers in the interpreter of a stack."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.canary.processes import Processes
from keepstep.drills.expected import numbers
from keepstep.drills.surroundings import minor_of
from keepstep.stack.named import Stack

STEPPING = Path(__file__).with_name("inside") / "stepping.py"
_OLDEST = (2, 15)  # that can change the members of a process group
PROGRAM = "from keepstep.cli.main import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """How one run of ``keepstep run`` ended and what it left."""

    ended: bool  # by itself, within the limit
    exit_code: int | None
    summary: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    left_over: tuple[str, ...]
    tail: str  # of its output

    def of_kind(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one name."""
        return [event for event in self.events if event.get("event") == name]

    @property
    def problem(self) -> str:
        """Why it says nothing; "" where it ran to its end."""
        if not self.ended:
            return "it did not end within its limit and was killed"
        if self.exit_code != 0:
            return f"it ended with exit code {self.exit_code}: {self.tail[-300:].strip()}"
        return "" if self.summary else "it left no summary"


def why_not(stack: Stack) -> str:
    """Return why a stack cannot run under ``keepstep run``; "" where it can."""
    if numbers(minor_of(stack)) < _OLDEST:
        return f"PyTorch {stack.torch} cannot change the members of a process group (2.15 can)"
    return ""


def run_supervised(
    stack: Stack,
    job: Sequence[str],
    *,
    folder: Path,
    faults: Sequence[str] = (),
    workers: int = 3,
    patience_s: float = 2.0,
    limit_s: float,
) -> Supervised:
    """Run ``job`` under ``keepstep run`` with one spare; nothing of it is running afterwards.

    Args:
        stack: Whose interpreter the workers get.
        job: Script and arguments.
        folder: For what the run leaves; made when missing.
        faults: To inject, such as ``kill@12:1``.
        workers: Ranks.
        patience_s: Seconds without progress after which a rank counts as stalled.
        limit_s: Seconds until everything is killed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summary, events = folder / "summary.json", folder / "events.jsonl"
    command = [
        *(sys.executable, "-c", PROGRAM, "run"),
        *("--python", stack.launcher, "--backend", "gloo"),
        *("--workers", str(workers), "--spares", "1", "--patience", f"{patience_s:g}"),
        *("--summary", str(summary), "--events", str(events)),
        *("--incidents", str(folder / "incidents")),
        *(part for fault in faults for part in ("--inject", fault)),
        *job,
    ]
    variables = {**os.environ, **stack.variables}
    with Processes() as processes, open(folder / "output.txt", "wb") as output:
        processes.start(command, variables, output, folder)
        ended = processes.wait(limit_s, 0.0)
        left = processes.left_over() if ended else []
        code = processes.started[0].poll()
    return Supervised(
        ended=ended,
        exit_code=code,
        summary=json.loads(summary.read_text()) if summary.exists() else {},
        events=tuple(_lines(events)),
        left_over=tuple(left),
        tail=(folder / "output.txt").read_bytes()[-2000:].decode(errors="replace"),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]
