"""The processes of one run, and what all systems under test have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.recovery.marks import FOLDER
from tools.environment import ROOT

TRAINING = Path(__file__).parent / "training"
GRACE = 10.0  # seconds that a launcher gets to end its processes


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One competitor.

    Attributes:
        processes: training processes that must be ready before a fault: ranks and spares.
        settings: what was chosen for it, to be printed beside its numbers.
        start: starts a run in a folder.
    """

    name: str
    processes: int
    settings: Mapping[str, str]
    start: Callable[[Path], Job]


class Job:
    """The processes of one run."""

    def __init__(self, folder: Path) -> None:
        """Start nothing yet. ``folder`` gets marks, checkpoints and output."""
        self.folder = folder
        self._launched: list[subprocess.Popen[bytes]] = []

    def launch(
        self,
        command: Sequence[str | Path],
        output: str,
        more_variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[bytes]:
        """Start a process; what it says is appended to the file ``output``."""
        with open(self.folder / output, "ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**variables(self.folder), **more_variables},
                start_new_session=True,
            )
        self._launched.append(process)
        return process

    @property
    def ended(self) -> bool:
        """Whether the process that was launched first is gone, and with it the job."""
        return self._launched[0].poll() is not None

    def tend(self, left_behind: int | None) -> None:
        """Do what the system leaves to its operator.

        Args:
            left_behind: process that the others went on without; it may be stopped.
        """

    def close(self) -> None:
        """End every process of the run."""
        for process in self._launched:
            process.terminate()
        for process in self._launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._launched:
            process.wait()


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of a run's processes, equal for all systems."""
    return {
        **os.environ,
        FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that no process of a run outlives the benchmark."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def processes_of(folder: Path) -> list[int]:
    """Return the processes of a run, told by their environment: launchers start new sessions."""
    wanted = f"{FOLDER}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
