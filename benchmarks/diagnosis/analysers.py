"""The analysers: how each is run on a folder of dumps and how its answer is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def warm_torchfrtrace() -> Iterator[Callable[[str, Path], Output]]:
    """Give a function that runs torchfrtrace on a folder in a process that has imported torch."""
    process = subprocess.Popen(
        [sys.executable, HERE / "run_torchfrtrace.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **TOOLS[TORCHFRTRACE].variables()},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, replies = process.stdin, process.stdout

    def ask(order: str, folder: Path) -> Output:
        print(json.dumps([order, str(folder)]), file=requests, flush=True)
        return Output(**json.loads(replies.readline()))

    with process:
        yield ask
