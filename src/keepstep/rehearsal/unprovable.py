"""What a machine of this kind can never prove, in plain words."""

from __future__ import annotations

from keepstep.report.model import Machine

_WITHOUT_GPU = (
    "That NCCL starts, trains, hangs and ends as before: gloo was used, and gloo has another code "
    "path for everything.",
    "Memory of communicators, and whether a group that is never used costs some.",
    "Speed of collectives over NVLink, and of anything on a GPU.",
    "Numerical equality of GPU kernels: cuDNN, cuBLAS and the compiler differ between the wheels.",
    "That the driver fits the wheel's CUDA version.",
    "The first two ways back, TORCH_DIST_USE_NCCL2=0 and nccl-legacy: here only what the names "
    "stand for was read, no communicator was built.",
)
_ONE_GPU = ("Anything between two GPUs: NVLink, one rank a card, peer access.",)
_ONE_NODE = ("Anything between two hosts: network plugins, start-up of many ranks, a lost host.",)
_ALWAYS = (
    "Rare faults: a rehearsal of this length bounds the rate of hangs, it does not exclude them.",
)


def unprovable(machine: Machine) -> tuple[str, ...]:
    """Return what stays open on such a machine, whatever is run on it."""
    gpus = _WITHOUT_GPU if not machine.gpus else _ONE_GPU if len(machine.gpus) == 1 else ()
    return (*gpus, *(_ONE_NODE if machine.nodes == 1 else ()), *_ALWAYS)
