"""TCP ports of this host: taken now, for a process that is still to come."""

from __future__ import annotations

import socket


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0: any free one. A process started with it accepts.

    Raises:
        OSError: the address is not one of this machine, or the port is in use.
    """
    return socket.create_server((host, port))


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that keeps a port from others and refuses connections.

    As long as it is open no connection of this host gets the port by chance, and a process that is
    told of it can listen on it, again and again.

    Raises:
        OSError: as ``listen``.
    """
    kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, port))
    except OSError:
        kept.close()
        raise
    return kept


def is_free(host: str, port: int) -> bool:
    """Return whether ``port`` can be listened on."""
    try:
        listen(host, port).close()
    except OSError:
        return False
    return True
