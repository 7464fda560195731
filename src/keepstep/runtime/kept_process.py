"""A process of the launcher's own that is started again whenever it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_QUICK_DEATHS = 5


class InfrastructureError(Exception):
    """Something of ours, or of the machine, does not work; not the user's job."""


@dataclass(slots=True)
class KeptProcess:
    """A process that ``start`` starts; ``on_exit`` is told of each that has ended.

    One that lives shorter than ``quick`` seconds failed to start.
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    quick: float
    on_exit: Callable[[subprocess.Popen[bytes]], None]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.process = self.start()

    async def keep(self, is_over: Callable[[], bool]) -> None:
        """Start it again whenever it has ended, until ``is_over``; return never.

        Raises:
            InfrastructureError: it does not stay up.
        """
        quick = 0
        while True:
            began = time.monotonic()
            await _exit_of(self.process)
            if is_over():
                await asyncio.Event().wait()
            quick = quick + 1 if time.monotonic() - began < self.quick else 0
            self.on_exit(self.process)
            if quick >= MAX_QUICK_DEATHS:
                raise InfrastructureError(f"the {self.name} does not stay up; see its output above")
            self.process = self.start()

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait()


async def _exit_of(process: subprocess.Popen[bytes]) -> None:
    descriptor = os.pidfd_open(process.pid)
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.wait()
