"""A process of the launcher's own that is started again whenever it ends or stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from keepstep.runtime import procfs
from keepstep.runtime.pauses import Pauses

MAX_QUICK_DEATHS = 5
MAX_KILLS = 60  # in a row, each soon after a start; with the pauses they take two minutes
LONGEST_PAUSE = 2.0  # seconds before the next start of one that is killed again and again
_OWN_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
LOOK = 1.0  # seconds between two looks whether it is stopped
STOPPED = 0.9  # seconds; seen at the next look, before the shortest lease (3 s) has ended


class InfrastructureError(Exception):
    """Something of ours, or of the machine, does not work; not the user's job."""


@dataclass(slots=True)
class KeptProcess:
    """A process that ``start`` starts; ``on_exit`` is told of each that has ended, and why.

    One that lives shorter than ``quick`` seconds failed to start, unless it was killed from
    outside: then the next start waits a little. One that is stopped (SIGSTOP) is killed: another
    can do its work.
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    quick: float
    on_exit: Callable[[subprocess.Popen[bytes], float], None]  # seconds for which it was stopped
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.process = self.start()

    async def keep(self, is_over: Callable[[], bool]) -> None:
        """Start it again whenever it has ended; return never.

        Where ``is_over`` an end without an error is what it should do.

        Raises:
            InfrastructureError: it does not stay up.
        """
        quick, killed = 0, 0
        while True:
            began = time.monotonic()
            stopped = await self._exit()
            if is_over() and self.process.returncode == 0:
                await asyncio.Event().wait()
            is_quick, code = time.monotonic() - began < self.quick, self.process.returncode
            is_killed = code < 0 and -code not in _OWN_FAULTS
            killed = killed + 1 if is_quick and is_killed else 0
            quick = 0 if not is_quick else quick if is_killed else quick + 1
            self.on_exit(self.process, stopped)
            if quick >= MAX_QUICK_DEATHS or killed >= MAX_KILLS:
                raise InfrastructureError(f"the {self.name} does not stay up; see its output above")
            if killed >= MAX_QUICK_DEATHS:
                await asyncio.sleep(min(LONGEST_PAUSE, 0.1 * 2 ** (killed - MAX_QUICK_DEATHS)))
            self.process = self.start()

    async def _exit(self) -> float:
        """Wait for its end; return for how long it had been stopped when that was brought about."""
        pauses, since, stopped = Pauses(), 0.0, 0.0
        async with _exit_event(self.process) as exited:
            while not exited.is_set():
                pauses.will_look(time.monotonic(), LOOK)
                try:
                    # Not wait_for: before Python 3.12 it loses a cancellation at the very end.
                    async with asyncio.timeout(LOOK):
                        await exited.wait()
                except TimeoutError:
                    now = time.monotonic()
                    held_up = pauses.look(now) > 0  # perhaps it was stopped together with us
                    if held_up or procfs.state_and_work(self.process.pid)[0] != "T":
                        since = 0.0
                        continue
                    since = since or now
                    if now - since >= STOPPED:
                        stopped = now - since
                        self.process.kill()
        self.process.wait()
        return stopped

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def _exit_event(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.Event]:
    descriptor = os.pidfd_open(process.pid)
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, exited.set)
    try:
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
