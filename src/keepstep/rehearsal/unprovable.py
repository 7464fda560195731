"""What a machine of this kind can never prove, in plain words."""

from __future__ import annotations

from keepstep.report.model import Machine

# Each goes on from "no machine of this kind can prove".
_WITHOUT_GPU = (
    "that NCCL starts, trains, hangs and ends as before: gloo was used, another code path",
    "what communicators cost in device memory, and what a group costs that is never used",
    "the speed of collectives over NVLink, and of anything on a GPU",
    "numerical equality on GPUs: cuDNN, cuBLAS and the compiler differ between the wheels",
    "that the driver fits the wheel's CUDA version",
    "the ways back TORCH_DIST_USE_NCCL2=0 and nccl-legacy: what the names stand for was read, no "
    "communicator was built",
)
_ONE_GPU = ("anything between two GPUs: NVLink, one rank a card, peer access",)
_ONE_NODE = ("anything between two hosts: network plugins, start-up of many ranks, a lost host",)
_ALWAYS = ("that rare faults are gone: a rehearsal of this length only bounds the rate of hangs",)


def unprovable(machine: Machine) -> tuple[str, ...]:
    """Return what stays open on such a machine, whatever is run on it."""
    gpus = _WITHOUT_GPU if not machine.gpus else _ONE_GPU if len(machine.gpus) == 1 else ()
    return (*gpus, *(_ONE_NODE if machine.nodes == 1 else ()), *_ALWAYS)
