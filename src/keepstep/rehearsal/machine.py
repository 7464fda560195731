"""What this machine is, as far as a rehearsal depends on it."""

from __future__ import annotations

import os
import platform

from keepstep.canary.matrix import Machine as Allocation
from keepstep.report.model import Machine
from keepstep.stack.machine import NoDriverError, driver_and_gpus


def this_machine() -> Machine:
    """Return the facts that a report shows; no device is initialised for it."""
    return Machine(
        host=platform.node(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=_gpus(),
        nodes=1,
        system=f"{platform.system()} {platform.release()}",
    )


def allocation(machine: Machine) -> Allocation:
    """Return what decides which cells can run."""
    return Allocation(gpus=len(machine.gpus), nodes=machine.nodes)


def _gpus() -> tuple[str, ...]:
    """Return the models of the GPUs that the driver lets this process use."""
    try:
        _, gpus, _ = driver_and_gpus()
    except NoDriverError:
        return ()
    return tuple(str(gpu["name"] or "unknown model") for gpu in gpus)
