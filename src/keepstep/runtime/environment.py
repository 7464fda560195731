"""The environment of a worker process: torchrun's variables and our own."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.config import ENVIRONMENT, WorkerConfig
from keepstep.runtime.inject import Injection

RECORDED = "256"  # collectives that the flight recorder of a worker keeps, if nobody says more


def worker_environment(
    *,
    wid: int,
    rank: int,
    local_rank: int,
    link: int,
    progress: Path,
    store: tuple[str, int],
    world_size: int,
    agent: AgentConfig,
    injections: tuple[Injection, ...],
) -> dict[str, str]:
    """Return the variables for one worker.

    RANK is the rank in the first generation and lies beyond the ranks for a spare; ``Job.rank`` is
    the truth from then on.
    """
    config = WorkerConfig(
        wid=wid,
        backend=agent.backend,
        world_size=world_size,
        store_host=store[0],
        store_port=store[1],
        host=agent.host,
        vault=str(agent.vault),
        progress=str(progress),
        link=link,
        secret=agent.secret,
        injections=injections,
        testifies=agent.kept_incidents > 0,
    )
    slots = agent.workers + agent.spares
    found = dict(os.environ)
    found.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(agent.workers),
        GROUP_RANK="0",
        ROLE_RANK=str(rank),
        MASTER_ADDR=store[0],
        MASTER_PORT=str(store[1]),
        KEEPSTEP_LOCAL_SLOTS=str(slots),
        TORCHELASTIC_RUN_ID="keepstep",
    )
    found[ENVIRONMENT] = config.to_json()
    found |= import_path(agent.import_from)
    # As torchrun does: one thread a worker unless the user says otherwise.
    if slots > 1:
        found.setdefault("OMP_NUM_THREADS", "1")
    # nccl2's abort symbolises stacks for its dump, 5 to 6 s; without stacks the dump is still
    # written and abort takes 2 ms (torch 2.15.0).
    found.setdefault("TORCH_INCLUDE_STACK_TRACE", "0")
    # A dump costs 20 to 40 microseconds an entry, and survivors wait for it before they are freed.
    found.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)
    interface = interface_of(agent.host)
    if interface is not None:
        found.setdefault("GLOO_SOCKET_IFNAME", interface)
        found.setdefault("NCCL_SOCKET_IFNAME", interface)
    # gloo and c10d report every connection that a lost rank breaks; we report the rank.
    found.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return found


def import_path(folder: str) -> dict[str, str]:
    """Return the variable with which an interpreter finds packages in ``folder`` first."""
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (folder, others)))} if folder else {}


_SIOCGIFADDR = 0x8915  # linux/sockios.h


def interface_of(address: str) -> str | None:
    """Return the network interface that has the IPv4 ``address``, None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
