"""Faults on purpose, so that a judge can be tried. Each is written into the record."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.probe.record import Record

FORMS = "hang@STEP:RANK, crash@STEP:RANK, gradient@STEP:RANK, leak:MB, dump:RANK or warn:TEXT"
_AT = re.compile(r"(hang|crash|gradient)@(\d+):(\d+)")
_LEFT_FOR = 60  # seconds that a planted leftover lives


class PlantError(ValueError):
    """What was to be planted is not understood."""


class PlantedCrash(RuntimeError):
    """Raised inside the job because it was asked for."""


class Plants:
    """What is planted in this process."""

    def __init__(self, record: Record, *, slow: float, faster: float, plants: list[str]) -> None:
        self._record, self._slow, self._faster = record, slow, faster
        rank = os.environ.get("RANK", "0")
        self._at: dict[int, list[str]] = {}
        self._leak_mb = 0
        self._text: str | None = None
        self.without_dump = False
        for plant in plants:
            at = _AT.fullmatch(plant)
            kind, _, value = plant.partition(":")
            if at is not None:
                if at[3] == rank:
                    self._at.setdefault(int(at[2]), []).append(at[1])
            elif kind == "leak" and value.isdigit():
                self._leak_mb = int(value)
            elif kind == "dump" and value.isdigit():
                self.without_dump = value == rank
            elif kind == "warn" and value:
                self._text = value
            else:
                raise PlantError(f"--plant {plant}: wanted {FORMS}")
        planted = list(plants)
        if slow != 1.0:
            planted.append(f"slow {slow}: each step sleeps that much of its own time")
        if faster != 1.0:
            planted.append(f"faster {faster}: the times of steps are divided when they are noted")
        if planted:
            record.about["planted"] = planted

    def before_step(self, step: int, optimizer: Any) -> None:
        """Do what is due before step ``step``, counted from 0."""
        if step == 0 and self._text is not None:
            warnings.warn(self._text, UserWarning, stacklevel=1)
        for kind in self._at.pop(step, []):
            self._record.about.setdefault("happened", []).append(f"{kind} before step {step}")
            self._record.write()
            if kind == "gradient":
                flip_one_bit(optimizer)
            elif kind == "crash":
                raise PlantedCrash(f"planted by keepstep probe: crash before step {step}")
            else:
                threading.Event().wait()

    def slowed(self, seconds: float) -> float:
        """Sleep the planted part of a step; return how long the step is with it.

        It sleeps: ranks that wait for each other all sleep at the same time and lose exactly this,
        while a busy loop would also take a core from the others where cores are short.
        """
        if self._slow == 1.0:
            return seconds
        began = time.perf_counter()
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # else the device works on while the host sleeps
        waited = time.perf_counter() - began
        time.sleep((seconds + waited) * (self._slow - 1.0))
        return seconds + time.perf_counter() - began

    def scaled(self, seconds: float) -> float:
        """Return the time of a step as it is to be noted."""
        return seconds / self._faster

    def at_the_end(self) -> None:
        """Leave behind what was asked for; it removes itself after a minute."""
        if not self._leak_mb:
            return
        path = f"/dev/shm/keepstep-planted-{os.getpid()}"
        with open(path, "wb") as file:
            file.truncate(self._leak_mb << 20)
        subprocess.Popen(
            ["/bin/sh", "-c", f"sleep {_LEFT_FOR}; rm -f {path}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def flip_one_bit(optimizer: Any) -> None:
    """Flip one bit of the largest gradient element: its value becomes four times or a quarter."""
    import torch

    from keepstep.probe.digests import local_part

    gradients = [
        local_part(each.grad)
        for group in optimizer.param_groups
        for each in group["params"]
        if each.grad is not None and each.grad.numel()
    ]
    with torch.no_grad():
        largest = max(gradients, key=lambda each: float(each.abs().max()))
        place = largest.abs().reshape(-1).argmax()
        flat = largest.view(-1)
        if flat.dtype is torch.float32:
            # Bit 24 is the second of the exponent.
            flat.view(torch.int32)[place] ^= 1 << 24
        else:
            flat[place] *= 4
