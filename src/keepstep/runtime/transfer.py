"""Bytes on request over TCP: state from a live rank, rank records and snapshots from an agent.

One request is a name, the answer is a length and that many bytes. Both ends prove that they hold
the job's secret before the first request. A plain length prefix and large writes keep the loopback
or the network full; integrity is the caller's business (every tensor has a SHA-256).

Standard library only: the agent serves its vault with it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from keepstep.runtime.handshake import (
    MAC_BYTES,
    NONCE_BYTES,
    AuthenticationError,
    derive_key,
    proof,
)

Buffers = Sequence[bytes | memoryview]
_LENGTH = struct.Struct(">q")
_NAME_LENGTH = struct.Struct(">I")
_MAX_NAME = 1 << 24  # a list of some hundred thousand tensors
_ABSENT = -1
_CHUNK = 4 << 20  # bytes a send: large enough to keep the pipe full, small enough to be interrupted


class TransferError(Exception):
    """The other end (``address``, if known) vanished, or does not have what was asked for."""

    def __init__(self, text: str, address: str = "") -> None:
        """Keep both."""
        super().__init__(text)
        self.address = address


class AbsentError(TransferError):
    """The other end does not have what was asked for."""


class ByteServer:
    """Serves what ``provide(name)`` returns (None: absent), one thread a connection."""

    def __init__(self, host: str, secret: str, provide: Callable[[str], Buffers | None]) -> None:
        """Listen on a free port of ``host``."""
        self._secret, self._provide = secret, provide
        self._listener = socket.create_server((host, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="keepstep-serve", daemon=True).start()

    def close(self) -> None:
        """Stop to accept; open connections end with their clients."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # no memory for a thread: this client has to go elsewhere
                print(f"keepstep: {error}", file=sys.stderr, flush=True)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, TransferError, AuthenticationError):
            connection.settimeout(60.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _prove_to_client(connection, self._secret)
            while True:
                (size,) = _NAME_LENGTH.unpack(_read(connection, _NAME_LENGTH.size))
                if size > _MAX_NAME:
                    return
                name = _read(connection, size).decode()
                self._answer(connection, self._provide(name))

    @staticmethod
    def _answer(connection: socket.socket, buffers: Buffers | None) -> None:
        if buffers is None:
            connection.sendall(_LENGTH.pack(_ABSENT))
            return
        connection.sendall(_LENGTH.pack(sum(len(part) for part in buffers)))
        for part in buffers:
            view = memoryview(part)
            for start in range(0, len(view), _CHUNK):
                connection.sendall(view[start : start + _CHUNK])


class ByteClient:
    """One connection to a ``ByteServer``."""

    def __init__(self, address: str, secret: str, timeout: float) -> None:
        """Connect to ``host:port``; every later read waits ``timeout`` seconds at most.

        Raises:
            TransferError: unreachable.
            AuthenticationError: another job answers there.
        """
        host, _, port = address.rpartition(":")
        try:
            self._connection = socket.create_connection((host, int(port)), timeout=timeout)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _prove_to_server(self._connection, secret)
        except (OSError, TransferError) as error:
            raise TransferError(f"{address}: {error}", address) from error
        self.address = address

    def read(self, name: str) -> bytearray:
        """Return the bytes under ``name``."""
        data = bytearray(self._request(name))
        self._read_into([memoryview(data)])
        return data

    def read_into(self, name: str, buffers: Sequence[memoryview]) -> None:
        """Fill ``buffers``, which together are as long as the answer, without a copy."""
        size, wanted = self._request(name), sum(len(buffer) for buffer in buffers)
        if size != wanted:
            text = f"{self.address} has {size} bytes of {name}, wanted {wanted}"
            raise TransferError(text, self.address)
        self._read_into(buffers)

    def is_closed(self) -> bool:
        """Return whether the other end is gone. To be asked between two requests."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _request(self, name: str) -> int:
        raw = name.encode()
        try:
            self._connection.sendall(_NAME_LENGTH.pack(len(raw)) + raw)
            (size,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
        except (OSError, TransferError) as error:
            raise TransferError(f"{self.address}: {error}", self.address) from error
        if size == _ABSENT:
            raise AbsentError(f"{self.address} does not have {name}", self.address)
        return int(size)

    def _read_into(self, buffers: Sequence[memoryview]) -> None:
        try:
            for buffer in buffers:
                _fill(self._connection, buffer)
        except (OSError, TransferError) as error:
            raise TransferError(f"{self.address}: {error}", self.address) from error


@contextlib.contextmanager
def client(address: str, secret: str, timeout: float) -> Iterator[ByteClient]:
    """Open a ``ByteClient`` and close it afterwards."""
    opened = ByteClient(address, secret, timeout)
    try:
        yield opened
    finally:
        opened.close()


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _fill(connection, memoryview(data))
    return bytes(data)


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        got = connection.recv_into(buffer[done:])
        if got == 0:
            raise TransferError("the other end closed the connection in mid-transfer")
        done += got


def _prove_to_server(connection: socket.socket, secret: str) -> None:
    mine = os.urandom(NONCE_BYTES)
    connection.sendall(mine)
    key = derive_key(secret, mine, _read(connection, NONCE_BYTES))
    connection.sendall(proof(key, b"client"))
    if not hmac.compare_digest(_read(connection, MAC_BYTES), proof(key, b"server")):
        raise AuthenticationError("the server does not hold this job's secret")


def _prove_to_client(connection: socket.socket, secret: str) -> None:
    theirs = _read(connection, NONCE_BYTES)
    mine = os.urandom(NONCE_BYTES)
    connection.sendall(mine)
    key = derive_key(secret, theirs, mine)
    if not hmac.compare_digest(_read(connection, MAC_BYTES), proof(key, b"client")):
        raise AuthenticationError("the client does not hold this job's secret")
    connection.sendall(proof(key, b"server"))
