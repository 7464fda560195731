"""A few operations on the default group, right after it was made: what a call costs here.

No random numbers are drawn, and what is sent is zeros. The recorder counts these operations too, so
the sequence numbers of the job begin later than without the probe.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.probe.record import Record

# Bytes and how often: start-up cost, something between, and bandwidth.
SIZES = ((4 << 10, 20), (256 << 10, 12), (4 << 20, 6))
_WARM_UP = 2


def device(dist: Any, tensors: list[Any]) -> Any:
    """Return the device that the default group works on; None while that is not known.

    Args:
        dist: ``torch.distributed.distributed_c10d``.
        tensors: What the job passes to its first collective, or nothing before it.
    """
    import torch

    group = dist._get_default_group()
    types = {each.type for each in group._device_types}
    if "cuda" in types:
        bound = getattr(group, "bound_device_id", None)
        if bound is not None:
            return bound
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type in types:
                return tensor.device
        if torch.cuda.is_initialized():
            return torch.device("cuda", torch.cuda.current_device())
        return None if types == {"cuda"} else torch.device("cpu")
    return torch.device("cpu") if "cpu" in types else None


def run(dist: Any, device: Any, record: Record) -> None:
    """Measure the first collective, then all-reduce and an exchange with the neighbours."""
    import torch

    def settled() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    first = torch.zeros(1, device=device)
    began = time.perf_counter()
    dist.all_reduce(first)
    settled()
    record.first_collective_s = time.perf_counter() - began
    rank, world = dist.get_rank(), dist.get_world_size()
    for size, times in SIZES:
        sent = torch.zeros(size // 4, device=device)
        received = torch.zeros(size // 4, device=device)
        for number in range(_WARM_UP + times):
            began = time.perf_counter()
            dist.all_reduce(sent)
            settled()
            if number >= _WARM_UP:
                record.add_latency("all_reduce", size, time.perf_counter() - began)
        for number in range(_WARM_UP + times if world > 1 else 0):
            began = time.perf_counter()
            # Batched: it uses the group's communicator, where single calls may make new ones.
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, (rank + 1) % world),
                    dist.P2POp(dist.irecv, received, (rank - 1) % world),
                ]
            )
            for work in works:
                work.wait()
            settled()
            if number >= _WARM_UP:
                record.add_latency("send_recv", size, time.perf_counter() - began)
