"""Loads of a checkpoint on a stack, by ``keepstep checkpoint test-load``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.canary.processes import Processes
from keepstep.checkpoint.downgrade import convert
from keepstep.checkpoint.sibling import choose_placement, make_sibling
from keepstep.checkpoint.store import LocalStore
from keepstep.drills.supervised import PROGRAM
from keepstep.stack.named import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLoad:
    """What came of one load."""

    __test__ = False  # a name of ours, not a test

    verdict: str  # pass, fail, inconclusive; "" where there is none
    error: str  # of PyTorch, or why there is no verdict
    digests: dict[str, str]  # SHA-256 of each entry
    torch: str  # that loaded it

    @property
    def text(self) -> str:
        """What was seen, in words."""
        if self.verdict == "pass":
            return f"PyTorch {self.torch} loaded its {len(self.digests)} entries"
        return f"PyTorch {self.torch or '?'}: {self.error}"


def load_on(
    stack: Stack, checkpoint: Path, *, label: str, folder: Path, limit_s: float
) -> TestLoad:
    """Load ``checkpoint`` with the PyTorch of a stack; nothing of it is running afterwards.

    Args:
        stack: Where to load.
        checkpoint: Its folder.
        label: Names the file with the answer.
        folder: Where that file goes.
        limit_s: Seconds until everything is killed.
    """
    output = folder / f"{label}.json"
    command = [
        *(sys.executable, "-c", PROGRAM, "checkpoint", "test-load", str(checkpoint)),
        *("--python", stack.launcher, "--no-record", "--json"),
    ]
    with Processes() as processes, open(output, "wb") as file:
        processes.start(command, {**os.environ, **stack.variables}, file, folder)
        ended = processes.wait(limit_s, 0.0)
    said = output.read_text(errors="replace")
    answer = _answer(said)
    if not ended or answer is None:
        why = said.strip()[-300:] if ended else f"not ended after {limit_s:.0f} s; killed"
        return TestLoad(verdict="", error=why, digests={}, torch="")
    return TestLoad(
        verdict=answer["verdict"],
        error=answer["error"],
        digests=answer["digests"],
        torch=str((answer["environment"]["torch"] or {}).get("version")),
    )


def _answer(said: str) -> dict[str, Any] | None:
    for line in said.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def make_readable(source: Path, target: Path, minor: str) -> dict[str, Any]:
    """Make a copy of a checkpoint that PyTorch ``minor`` reads; the source stays as it is.

    Returns:
        How its data files got there, and what was dropped from the metadata.

    Raises:
        CheckpointError: It cannot be made readable.
        OSError: The copy cannot be written.
    """
    store = LocalStore(source)
    placement = choose_placement(source, target)
    conversions = convert(store, minor)
    make_sibling(store, target, conversions, placement)
    dropped = sum(each.after.strides for each in conversions)
    return {"placement": placement.value, "strides_dropped": dropped}


def differing(one: TestLoad, other: TestLoad) -> list[str]:
    """Return the entries whose digests differ, or that only one of them has."""
    names = one.digests.keys() | other.digests.keys()
    return sorted(name for name in names if one.digests.get(name) != other.digests.get(name))
