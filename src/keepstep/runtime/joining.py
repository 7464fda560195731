"""What a worker does before it has a rank: process groups, a GPU, transfers, a warm-up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from keepstep.runtime.config import WorkerConfig, transport_asked
from keepstep.runtime.group import Groups
from keepstep.runtime.state import State, digest_of

if TYPE_CHECKING:
    from keepstep.runtime.one_sided import Endpoints


def create_groups(config: WorkerConfig) -> Groups:
    """Return the process groups of this worker, without peers yet."""
    device = torch.device("cpu")
    if config.backend == "nccl":
        device = _own_gpu(config.host)
    store = dist.TCPStore(config.store_host, config.store_port, is_master=False)
    groups = Groups(backend=config.backend, device=device, store=store, wid=config.wid)
    groups.initialise(config.world_size)
    return groups


def _own_gpu(host: str) -> torch.device:
    """Return the GPU of this process; several workers may share one."""
    count = torch.cuda.device_count()
    local = int(os.environ["LOCAL_RANK"])
    slots = int(os.environ["KEEPSTEP_LOCAL_SLOTS"])
    if slots > count:
        os.environ.setdefault("NCCL_HOSTID", nccl_host(host, local, count))
    if local >= count:
        print(
            f"keepstep: {count} GPUs for {slots} processes on this host: process {local} shares "
            f"GPU {local % count}, and NCCL reaches it through sockets. With as many GPUs as "
            "workers and spares together nothing is shared.",
            file=sys.stderr,
        )
    device = torch.device("cuda", local % count)
    torch.cuda.set_device(device)
    return device


def nccl_host(host: str, local: int, gpus: int) -> str:
    """Return which host this process belongs to in NCCL's eyes, where processes share GPUs.

    NCCL refuses two ranks of one host on one card. So those that find a card of their own stay one
    host, with the links between its cards, and each further round of processes is another, which is
    reached through sockets.
    """
    return f"keepstep-{host}-{local // gpus}"


def make_endpoints(config: WorkerConfig) -> Endpoints | None:
    """Begin to make what one-sided transfers need, if this run asks for them."""
    if transport_asked(os.environ) != "nixl":
        return None
    from keepstep.runtime import one_sided

    if not one_sided.is_installed():
        print("keepstep: nixl is not installed; state moves over TCP", file=sys.stderr)
        return None
    is_member_later = config.wid >= config.world_size
    return one_sided.Endpoints(one_sided.READ_ENDPOINTS if is_member_later else 0)


def warm_up(state: State, own: Callable[[], None]) -> None:
    """Call ``own``, which makes this process ready for its first step; leave no trace in ``state``.

    Raises:
        ValueError: the replicated state has changed.
    """
    rank_state = state.capture_rank()
    before = digest_of(state.encode_replicated().manifest())
    own()
    if digest_of(state.encode_replicated().manifest()) != before:
        raise ValueError(
            "train(warm_up=...) changed the replicated state; it may run a forward and a "
            "backward, but no optimizer step and nothing that updates buffers"
        )
    drop_gradients(state)
    state.restore_rank(rank_state)


def drop_gradients(state: State) -> None:
    """Leave no gradient in any module of ``state``."""
    for item in state.replicated.values():
        if isinstance(item, torch.nn.Module):
            item.zero_grad(set_to_none=True)
