"""Marks: the lines that every training process of the benchmark writes, whatever supervises it.

Used inside the training processes as well: standard library only. Times are `time.monotonic`, which
all processes of a host share.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "KEEPSTEP_BENCHMARK_FOLDER"  # variable that says where marks and checkpoints go

READY = "ready"  # imports done, model built: waits for its turn
ENTER = "enter"  # of a step: from here on it may exchange gradients
COMMIT = "commit"  # of a step: the optimizer has changed the parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One line.

    Attributes:
        members: ranks whose gradients the step holds (`COMMIT` only).
        digest: SHA-256 of the model's state, where it was asked for.
    """

    event: str
    rank: int
    pid: int
    step: int
    time: float
    members: int = 0
    digest: str = ""

    def line(self) -> str:
        """Return the mark as a line of text; `parse` is its inverse."""
        digest = self.digest or "-"
        return (
            f"{self.event} {self.rank} {self.pid} {self.step} {self.time:.6f} "
            f"{self.members} {digest}\n"
        )


def parse(line: str) -> Mark:
    """Return the mark that a line holds.

    Raises:
        ValueError: it holds none.
    """
    event, rank, pid, step, moment, members, digest = line.split()
    return Mark(
        event=event,
        rank=int(rank),
        pid=int(pid),
        step=int(step),
        time=float(moment),
        members=int(members),
        digest="" if digest == "-" else digest,
    )


def folder() -> Path:
    """Return the folder of the present run."""
    return Path(os.environ[FOLDER])


class MarkLog:
    """The marks of this process. Each is one write, so that a kill loses none."""

    def __init__(self) -> None:
        """Create the file."""
        path = folder() / f"marks-{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, rank: int, step: int, members: int = 0, digest: str = "") -> None:
        """Write one mark, now."""
        mark = Mark(
            event=event,
            rank=rank,
            pid=os.getpid(),
            step=step,
            time=time.monotonic(),
            members=members,
            digest=digest,
        )
        os.write(self._file, mark.line().encode())


@dataclass(slots=True)
class MarkReader:
    """Reads the marks of all processes of a run while they are written."""

    place: Path
    marks: list[Mark] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)

    def update(self) -> list[Mark]:
        """Return all marks so far, those of one process in their order."""
        for path in sorted(self.place.glob("marks-*")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path.name, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path.name] = self._read.get(path.name, 0) + len(whole) + len(newline)
            self.marks += [parse(line) for line in whole.decode().splitlines()]
        return self.marks
