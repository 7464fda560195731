"""torchft 0.2.0: a lighthouse, three replica groups of one process, and who restarts them.

torchft itself restarts nothing; `TorchftJob.tend` stands for the scheduler that would.
"""

from __future__ import annotations

import functools
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery.environment import ensure_environment
from benchmarks.recovery.job import TRAINING, Job, System
from benchmarks.recovery.marks import READY, MarkReader
from benchmarks.recovery.settings import WORLD_SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Settings of torchft; times in milliseconds unless said otherwise."""

    min_replicas: int
    join_timeout: int
    heartbeat_timeout: int
    quorum_tick: int
    group_timeout: float  # seconds

    def described(self) -> dict[str, str]:
        """Return the settings in torchft's own names."""
        return {
            "min_replicas": str(self.min_replicas),
            "join_timeout_ms": str(self.join_timeout),
            "heartbeat_timeout_ms": str(self.heartbeat_timeout),
            "quorum_tick_ms": str(self.quorum_tick),
            "ProcessGroupGloo timeout": f"{self.group_timeout:g} s",
        }


# The lighthouse command of the README of 0.2.0 (heartbeat timeout: its default), and the timeout
# of the group in the train_ddp.py that the README shows.
README = Tuning(
    min_replicas=1, join_timeout=10_000, heartbeat_timeout=5_000, quorum_tick=100, group_timeout=5.0
)

# As short as runs on two cores bear. The group's timeout equals the patience that keepstep derives
# for this workload, so both wait equally long for a rank that may just be slow.
TUNED = Tuning(
    min_replicas=2, join_timeout=200, heartbeat_timeout=1_000, quorum_tick=20, group_timeout=1.0
)


class TorchftJob(Job):
    """One run."""

    def __init__(self, folder: Path, tuning: Tuning) -> None:
        """Start lighthouse and replicas."""
        super().__init__(folder)
        self._tuning, self._environment = tuning, ensure_environment()
        self._address = self._start_lighthouse()
        self._ready = MarkReader(folder)
        self._replicas = {number: self._start_replica(number) for number in range(WORLD_SIZE)}

    def _start_lighthouse(self) -> str:
        port, tuning = free_port(), self._tuning
        options = {
            "--bind": f"[::]:{port}",
            "--min_replicas": tuning.min_replicas,
            "--join_timeout_ms": tuning.join_timeout,
            "--heartbeat_timeout_ms": tuning.heartbeat_timeout,
            "--quorum_tick_ms": tuning.quorum_tick,
        }
        arguments = [str(part) for option in options.items() for part in option]
        self.launch([self._environment / "bin" / "torchft_lighthouse", *arguments], "lighthouse")
        return f"http://localhost:{port}"

    def _start_replica(self, number: int) -> subprocess.Popen[bytes]:
        options = {
            "--replica": number,
            "--lighthouse": self._address,
            "--group-timeout": self._tuning.group_timeout,
            "--min-replicas": self._tuning.min_replicas,
        }
        arguments = [str(part) for option in options.items() for part in option]
        python = self._environment / "bin" / "python"
        return self.launch([python, TRAINING / "train_torchft.py", *arguments], f"output-{number}")

    def tend(self, left_behind: int | None) -> None:
        """Let the replicas begin together, end a stopped one, start those that ended."""
        go = self.folder / "go"
        if not go.exists():
            ready = [mark for mark in self._ready.update() if mark.event == READY]
            if len(ready) == WORLD_SIZE:
                go.touch()
        for number, process in self._replicas.items():
            if process.pid == left_behind:
                process.kill()
            if process.poll() is not None:
                self._replicas[number] = self._start_replica(number)


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _system(name: str, tuning: Tuning) -> System:
    return System(
        name=name,
        processes=WORLD_SIZE,
        settings=tuning.described(),
        start=functools.partial(TorchftJob, tuning=tuning),
    )


AS_README = _system("torchft-readme", README)
AS_TUNED = _system("torchft-tuned", TUNED)
