"""What the processes of a drill may know of the shell that started it, and what the machine has."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from keepstep.canary.torchrun import torchrun_variables
from keepstep.stack.exposed import exposed
from keepstep.stack.machine import NoDriverError, driver_and_gpus
from keepstep.stack.named import Stack

# Of another launcher, of another run of ours, or of another interpreter: an answer to another
# question than the drill's.
_DROPPED_PREFIXES = ("TORCHELASTIC_", "KEEPSTEP_", "PYTHON")
_DROPPED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


def base_variables(stack: Stack) -> dict[str, str]:
    """Return the variables of a process on a stack: those of the shell, then the stack's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    return {
        **kept,
        "PYTHONPATH": str(exposed()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",  # as torchrun sets it for more than one process
        **stack.variables,
    }


def rank_variables(
    stack: Stack, *, rank: int, world_size: int, port: int, on_gpu: bool
) -> dict[str, str]:
    """Return the variables of one rank on this host, torchrun's among them."""
    found = base_variables(stack) | torchrun_variables(rank, world_size, port)
    if not on_gpu:
        return {**found, "CUDA_VISIBLE_DEVICES": ""}
    if world_size > len(gpus()):
        # NCCL takes processes with different host ids for different hosts, and so several of them
        # share one card; they talk over sockets then.
        found |= {"NCCL_HOSTID": f"drill-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    return found


@functools.cache
def gpus() -> tuple[str, ...]:
    """Return the NVIDIA devices that this machine shows; no device is initialised for it."""
    try:
        _, found, _ = driver_and_gpus()
    except NoDriverError:
        return ()
    return tuple(str(gpu["uuid"] or gpu["index"]) for gpu in found)


def needs_gpu(backend: str) -> bool:
    """Return whether a backend spelling cannot be built on a CPU."""
    return backend != "gloo"


def minor_of(stack: Stack) -> str:
    """Return the minor version of a stack's PyTorch, such as 2.15."""
    return ".".join(stack.torch.split("+")[0].split(".")[:2])


def shown(variables: Mapping[str, str]) -> str:
    """Return variables as a shell would set them; "none" for none."""
    return " ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "none"
