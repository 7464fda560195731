"""How the commands of ``keepstep checkpoint`` tell of a rollback window."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from keepstep.checkpoint.standing import Standing
from keepstep.checkpoint.window import Mark, Window
from keepstep.cli.checkpoint_answer import count_text, size_text
from keepstep.stack.named import all_stacks

_THERE = {True: "there", False: "not what was marked", None: "gone"}


def window_line(window: Window) -> str:
    """Return owner and end of a window; one that is past its end says what is due."""
    left = window.days_left(datetime.now(UTC).date())
    says = f"rollback window for PyTorch {window.minor}: owner {window.owner}, until {window.until}"
    if left < 0:
        return f"{says}: overdue by {count_text(-left, 'day')}, and still in force"
    return f"{says} ({count_text(left, 'day')} left)"


def due_lines(root: str, window: Window) -> list[str]:
    """Return how to settle a window that is past its end; nothing before."""
    if window.days_left(datetime.now(UTC).date()) >= 0:
        return []
    return [
        f"  {window.owner} owes a decision: keepstep checkpoint finalize {root} (accepted), "
        f"release {root} (given up), or protect {root} --until DATE (longer)"
    ]


def test_load_command(path: str, minor: str) -> str:
    """Return the command that test-loads with this version: by a stack of it, if there is one."""
    named = [each.name for each in all_stacks() if each.torch.split(".")[:2] == minor.split(".")]
    environment = f"--stack {shlex.quote(named[0])}" if named else "--python EXE"
    return f"keepstep checkpoint test-load {path} {environment}"


def mark_text(mark: Mark) -> str:
    """Return one protected checkpoint: name, size and proof."""
    if mark.tested is None:
        proof = "not test-loaded"
    else:
        proof = f"test-loaded with PyTorch {mark.tested.torch} at {mark.tested.when}"
    return f"{mark.name} ({size_text(mark.bytes)}): {proof}"


def standing_text(standing: Standing) -> str:
    """Return one protected checkpoint with what became of it."""
    text = mark_text(standing.mark)
    if standing.in_run is not True:
        text += f"; in the run: {_THERE[standing.in_run]}"
    if standing.copy is not None:
        text += f"; copy: {_THERE[standing.copy]}"
    return text


def window_facts(window: Window) -> dict[str, Any]:
    """Return a window for JSON."""
    left = window.days_left(datetime.now(UTC).date())
    return {**window.facts(), "marked": window.marked, "days_left": left}


def standing_facts(standings: tuple[Standing, ...]) -> list[dict[str, Any]]:
    """Return what became of the protected checkpoints, for JSON."""
    return [{**asdict(each), "mark": each.mark.name} for each in standings]


def closed_lines(root: str, window: Window) -> list[str]:
    """Return what is free to go after a window was closed."""
    if not window.marks:
        return []
    names = ", ".join(mark.name for mark in window.marks)
    return [
        f"  no longer protected: {names}",
        f"next: keepstep checkpoint prune {root} --copies (or --keep N, of the run as well)",
    ]
