"""What an exception in a step says about its cause."""

from __future__ import annotations

import torch
import torch.distributed as dist

# Texts of torch 2.15.0; its collectives raise plain RuntimeError for a lost connection.
_COLLECTIVE_TEXTS = ("gloo/transport", "Connection closed by peer", "NCCL", "Connection reset")
_MEMORY_TEXTS = ("can't allocate memory", "out of memory", "Cannot allocate memory")
_DEVICE_TEXTS = ("CUDA error", "device-side assert", "an illegal memory access")


def origin_of(error: BaseException) -> str:
    """Return where ``error`` comes from: memory, device, collective or step (the user's code)."""
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _holds(text, _MEMORY_TEXTS):
        return "memory"
    if isinstance(error, torch.AcceleratorError) or _holds(text, _DEVICE_TEXTS):
        return "device"
    if isinstance(error, dist.DistError) or _holds(text, _COLLECTIVE_TEXTS):
        return "collective"
    return "step"


def _holds(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)
