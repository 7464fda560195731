"""Processes of a run: started together, waited for with a limit, and none of them left over."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from keepstep.parent import die_with_parent

MARK = "KEEPSTEP_RUN"  # in the environment of every process of a run, its children included
# One wait of select. The kernel may give a signal to any thread (fsspec has one), which wakes no
# other, and Python handles it in the main thread, when that runs again.
_LONGEST_S = 0.5
_TIDY_S = 1.0  # for helpers of a process that has ended (resource trackers) to end as well


@dataclass(slots=True)
class Processes:
    """The processes of one run; a context manager that leaves none of them behind.

    Each is the leader of a session of its own, so that a terminal's Ctrl-C reaches only us, and
    carries a mark in its environment, so that a child that has left the session is found too.
    """

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(
        self, command: Sequence[str], variables: Mapping[str, str], output: IO[bytes], cwd: Path
    ) -> None:
        """Start one process; its output and its errors go to ``output``."""
        self.started.append(
            subprocess.Popen(
                command,
                env={**variables, MARK: self.mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # also when we are killed and cannot clean up
            )
        )

    def wait(self, limit_s: float, grace_s: float) -> bool:
        """Wait for all; after the first that fails the others have ``grace_s`` seconds.

        Returns:
            Whether all ended by themselves, within the limit or the grace.
        """
        # One whose end was seen before has no process to wait for any more.
        ended = [each.poll() for each in self.started]
        living = [each for each, code in zip(self.started, ended, strict=True) if code is None]
        open_ones = {os.pidfd_open(each.pid): each for each in living}
        deadline = time.monotonic() + (min(limit_s, grace_s) if any(ended) else limit_s)
        try:
            while open_ones and (left := deadline - time.monotonic()) > 0:
                for descriptor in select.select(list(open_ones), [], [], min(left, _LONGEST_S))[0]:
                    if open_ones[descriptor].wait() != 0:
                        deadline = min(deadline, time.monotonic() + grace_s)
                    os.close(descriptor)
                    del open_ones[descriptor]
            return not open_ones
        finally:
            for descriptor in open_ones:
                os.close(descriptor)

    def left_over(self) -> list[str]:
        """Return the processes of this run that outlived those that were started."""
        deadline = time.monotonic() + _TIDY_S
        while (found := self._others()) and time.monotonic() < deadline:
            time.sleep(0.05)  # a process that is not our child cannot be waited for
        return [f"process {pid}: {_command_line(pid)}" for pid in found]

    def kill(self) -> None:
        """End everything that carries the mark, and collect what is ours."""
        for each in self.started:
            if each.poll() is None:
                _kill_group(each.pid)
        for pid in self._others():
            _kill(pid)
        for each in self.started:
            each.wait()

    def _others(self) -> list[int]:
        ours = {each.pid for each in self.started}
        wanted = f"{MARK}={self.mark}".encode()
        return [pid for pid in _own_processes() if pid not in ours and wanted in _environ(pid)]


def _own_processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to somebody else
        return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "(ended)"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
