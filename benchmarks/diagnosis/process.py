"""One command: what it prints, how long it takes and how much memory it and its children hold."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchmarks.diagnosis.answers import Output

EVERY = 0.05  # seconds between two looks at memory
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished or stopped command.

    Attributes:
        output: None where it ran into the limit and was killed.
        wall: seconds.
        cpu: seconds of processor time, its children included.
        peak_bytes: the greatest sum of resident memory of it and its descendants at one time, as
            seen every ``EVERY`` seconds. Pages that they share count once for each.
    """

    output: Output | None
    wall: float
    cpu: float
    peak_bytes: int


def run(command: Sequence[str | Path], variables: Mapping[str, str], limit: float) -> Run:
    """Run a command to its end, or kill it after ``limit`` seconds."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        peak, late = 0, False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, resident_bytes(process.pid))
            if time.perf_counter() - began > limit and not late:
                late = True
                os.killpg(process.pid, 9)
            time.sleep(EVERY)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output = Output(process.returncode, _text(stdout), _text(stderr))
    return Run(
        output=None if late else output,
        wall=wall,
        cpu=usage.ru_utime + usage.ru_stime,
        peak_bytes=max(peak, usage.ru_maxrss * 1024),
    )


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and of all its descendants."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0  # it has just ended
    return pages * PAGE + sum(resident_bytes(int(child)) for child in children)
