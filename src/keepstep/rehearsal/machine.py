"""What this machine is, as far as a rehearsal depends on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from keepstep.canary.matrix import Machine as Allocation
from keepstep.report.model import Machine

_GPUS = Path("/proc/driver/nvidia/gpus")  # one folder a device, there whenever the driver is


def this_machine() -> Machine:
    """Return the facts that a report shows; no device is initialised for it."""
    return Machine(
        host=platform.node(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=_gpus(_GPUS),
        nodes=1,
        system=f"{platform.system()} {platform.release()}",
    )


def allocation(machine: Machine) -> Allocation:
    """Return what decides which cells can run."""
    return Allocation(gpus=len(machine.gpus), nodes=machine.nodes)


def _gpus(folder: Path) -> tuple[str, ...]:
    return tuple(_model(path) for path in sorted(folder.glob("*/information")))


def _model(path: Path) -> str:
    for line in path.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Model":
            return value.strip()
    return "unknown model"
