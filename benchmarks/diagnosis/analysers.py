"""The analysers: how each is run on a folder of dumps and how its answer is read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis import answers
from benchmarks.diagnosis.answers import Answer, Output
from benchmarks.diagnosis.peers import ensure_peers

HERE = Path(__file__).parent
OURS = "keepstep"
TORCHFRTRACE = "torchfrtrace"
NVRX = "nvrx"


@dataclass(frozen=True, slots=True)
class Tool:
    """One analyser.

    Attributes:
        orders: the orders of files in which it is tried; one where it sorts them itself.
        command: from an order and a folder to the command.
        answer: reads its output.
    """

    name: str
    orders: tuple[str, ...]
    command: Callable[[str, Path], list[str | Path]]
    answer: Callable[[Output], Answer]
    needs_peers: bool = False

    def variables(self) -> dict[str, str]:
        """Return the environment variables that it needs."""
        return {"PYTHONPATH": str(ensure_peers())} if self.needs_peers else {}


def _keepstep(_: str, folder: Path) -> list[str | Path]:
    return [Path(sys.executable).parent / "keepstep", "explain", "--json", folder]


def _torchfrtrace(order: str, folder: Path) -> list[str | Path]:
    return [sys.executable, HERE / "run_torchfrtrace.py", order, folder]


def _nvrx(_: str, folder: Path) -> list[str | Path]:
    return [sys.executable, HERE / "run_nvrx.py", folder]


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(OURS, ("",), _keepstep, answers.keepstep),
        Tool(
            TORCHFRTRACE,
            ("ascending", "descending", "rotated"),
            _torchfrtrace,
            answers.torchfrtrace,
            needs_peers=True,
        ),
        Tool(NVRX, ("",), _nvrx, answers.nvrx, needs_peers=True),
    )
}
