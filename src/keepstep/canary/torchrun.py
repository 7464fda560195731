"""What torchrun gives a rank, for ranks of one host that are started without it."""

from __future__ import annotations

import socket


def torchrun_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return torchrun's variables for one rank on this host."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
