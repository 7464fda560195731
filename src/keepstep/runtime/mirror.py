"""Copies of another host's rank records, so that they outlive that host.

Agents form a ring; each pulls from the one before it what its workers left at their last commits.
A pull costs a few kilobytes a worker; what was not pulled in time when a host is lost costs
exactness nothing: the job then goes back to a snapshot, whose rank records are mirrored too.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from keepstep.runtime import vault
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.transfer import ByteClient, TransferError

INTERVAL = 0.05  # seconds between two pulls
TIMEOUT = 2.0


class Mirror:
    """Pulls from one vault in a thread of its own."""

    def __init__(self, folder: Path, secret: str) -> None:
        """Pull nothing until ``follow``."""
        self._folder, self._secret = folder, secret
        self._target: tuple[str, list[int]] = ("", [])
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, address: str, wids: list[int]) -> None:
        """Pull from the vault at ``address`` (empty: from nobody) what these workers leave."""
        self._target = (address, wids)
        if address and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="keepstep-mirror", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed.set()

    def _run(self) -> None:
        connection: ByteClient | None = None
        while not self._closed.wait(INTERVAL):
            address, wids = self._target
            if connection is not None and connection.address != address:
                connection.close()
                connection = None
            try:
                if connection is None and address:
                    connection = ByteClient(address, self._secret, TIMEOUT)
                if connection is not None:
                    self._pull(connection, wids)
            except (TransferError, AuthenticationError, OSError):
                if connection is not None:
                    with contextlib.suppress(OSError):
                        connection.close()
                connection = None

    def _pull(self, connection: ByteClient, wids: list[int]) -> None:
        for wid in wids:
            vault.store_mirror(self._folder, wid, bytes(connection.read(f"mirror/{wid}")))
