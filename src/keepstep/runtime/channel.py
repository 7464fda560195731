"""The authenticated channel between agent and coordinator.

A frame carries one or more messages, a JSON array::

    length (4 bytes, big endian) | HMAC-SHA256 (32 bytes) | flag (1 byte) | body

The HMAC covers a direction byte, the frame's number in this direction, the flag and the SHA-256 of
the body, under a key that both ends derive from the job's secret and two fresh nonces: a frame that
is forged, replayed, reordered or sent back to its author is refused. A body for many channels is
serialised, compressed and hashed once. Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from keepstep.runtime.handshake import (
    MAC_BYTES,
    NONCE_BYTES,
    REFUSAL,
    AuthenticationError,
    derive_key,
    proof,
)
from keepstep.runtime.protocol import Message, ProtocolError, from_json_array, to_json

MAX_FRAME = 64 * 1024 * 1024  # a form message for 16,000 ranks is about 1 MiB before compression
COMPRESS_ABOVE = 4096
BATCH = 256 * 1024  # bytes of messages after which another frame begins
PLAIN, COMPRESSED = b"\x00", b"\x01"
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_HEAD = _LENGTH.size + MAC_BYTES + 1


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame's body, ready for any number of channels."""

    flag: bytes
    body: bytes
    digest: bytes


def pack(*messages: Message) -> Packed:
    """Serialise ``messages``, compressed when that saves bandwidth."""
    return _pack([to_json(message) for message in messages])


def _pack(parts: list[bytes]) -> Packed:
    flag, body = PLAIN, b"[" + b",".join(parts) + b"]"
    if len(body) > COMPRESS_ABOVE:
        flag, body = COMPRESSED, zlib.compress(body, 1)
    return Packed(flag, body, hashlib.sha256(body).digest())


def unpack(flag: bytes, body: bytes) -> list[Message]:
    """Undo ``pack``; a body that inflates beyond the frame limit is refused."""
    if flag == COMPRESSED:
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, MAX_FRAME)
        except zlib.error as error:
            raise ProtocolError(f"damaged frame: {error}") from error
        if inflate.unconsumed_tail:
            raise ProtocolError(f"frame inflates beyond {MAX_FRAME} bytes")
    return from_json_array(body)


class FrameCodec:
    """Signs and checks the frames of one end of a connection."""

    def __init__(self, key: bytes, sends: bytes, receives: bytes) -> None:
        """Begin to count frames; ``sends`` and ``receives`` are the direction bytes."""
        self._key, self._sends, self._receives = key, sends, receives
        self._sent = self._received = 0

    def head(self, packed: Packed) -> bytes:
        """Return what precedes the body of the next frame to be sent."""
        seed = self._sends + _NUMBER.pack(self._sent) + packed.flag + packed.digest
        self._sent += 1
        mac = hmac.digest(self._key, seed, "sha256")
        return _LENGTH.pack(MAC_BYTES + 1 + len(packed.body)) + mac + packed.flag

    def check(self, mac: bytes, flag: bytes, digest: bytes) -> None:
        """Raise AuthenticationError unless the other end sent this frame as its next.

        ``digest`` is the SHA-256 of the body that arrived.
        """
        seed = self._receives + _NUMBER.pack(self._received) + flag + digest
        if not hmac.compare_digest(mac, hmac.digest(self._key, seed, "sha256")):
            raise AuthenticationError(f"frame {self._received} fails its check")
        self._received += 1


class _Inbox:
    """Memory into which all connections of this process read, one after another."""

    def __init__(self) -> None:
        self.bytes = bytearray(256 * 1024)
        self.view = memoryview(self.bytes)


_inbox = _Inbox()


class Channel(asyncio.BufferedProtocol):
    """One end of a connection; made by ``connect`` and ``serve``.

    Messages that are sent in one turn of the event loop share a frame.
    """

    def __init__(self) -> None:
        """Use ``connect`` or ``serve`` instead."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._codec: FrameCodec | None = None
        self._rest = bytearray()  # of a frame that has not arrived as a whole
        self._outgoing: list[bytes] = []
        self._flush_due = False
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._on_messages: Callable[[list[Message]], None] | None = None
        self._on_end: Callable[[Exception], None] | None = None
        self.peer = "unknown"  # address of the other end, for logs

    # --- what the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "unknown"

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to put what arrives."""
        return _inbox.bytes

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` have arrived."""
        if self._error is not None:
            return
        try:
            if self._rest:
                self._rest += _inbox.view[:nbytes]
                used = self._take(self._rest)
                del self._rest[:used]
            else:
                used = self._take(_inbox.view[:nbytes])
                if used < nbytes:
                    self._rest += _inbox.view[used:nbytes]
        except ProtocolError as error:
            self._end(error)

    def eof_received(self) -> None:
        """The other end sends no more."""
        self._end(EOFError(f"{self.peer} closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._end(EOFError(f"{self.peer} closed the connection"))

    # --- reading ----------------------------------------------------------------------------------

    def _take(self, data: bytearray | memoryview) -> int:
        """Take every whole frame at the begin of ``data``; return how many bytes that was."""
        assert self._codec is not None
        place, end = 0, len(data)
        while end - place >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, place)
            if not MAC_BYTES < size <= MAX_FRAME:
                raise ProtocolError(f"frame of {size} bytes")
            after = place + _LENGTH.size + size
            if after > end:
                break
            mac = bytes(data[place + _LENGTH.size : place + _HEAD - 1])
            flag = bytes(data[place + _HEAD - 1 : place + _HEAD])
            body = bytes(data[place + _HEAD : after])
            place = after
            try:
                self._codec.check(mac, flag, hashlib.sha256(body).digest())
            except AuthenticationError as error:
                raise AuthenticationError(f"{error} (from {self.peer})") from None
            self._deliver(unpack(flag, body))
        return place

    def _deliver(self, messages: list[Message]) -> None:
        if self._on_messages is not None:
            self._on_messages(messages)
        else:
            self._messages += messages
            self._wake()

    def _end(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.close()
        self._wake()
        if self._on_end is not None:
            self._on_end(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def listen(
        self,
        on_messages: Callable[[list[Message]], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """Have each frame told at once, and once the end: what ``receive`` would raise."""
        self._on_messages, self._on_end = on_messages, on_end
        if self._messages:
            waiting, self._messages = list(self._messages), deque()
            on_messages(waiting)
        if self._error is not None:
            on_end(self._error)

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            EOFError: the other end closed.
            AuthenticationError: a frame that the other end cannot have sent.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    # --- writing ----------------------------------------------------------------------------------

    def send(self, message: Message | Packed) -> None:
        """Queue ``message``; never waits."""
        if isinstance(message, Packed):
            self._flush()
            self._write(message)
            return
        self._outgoing.append(to_json(message))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        parts, self._outgoing = self._outgoing, []
        while parts:
            count, size = 0, 0
            while count < len(parts) and size < BATCH:
                size += len(parts[count])
                count += 1
            self._write(_pack(parts[:count]))
            del parts[:count]

    def _write(self, packed: Packed) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        assert self._codec is not None
        self._transport.write(self._codec.head(packed) + packed.body)

    def close(self) -> None:
        """Close; queued messages are still sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once; a pending ``receive`` ends."""
        if self._transport is not None:
            self._transport.abort()


class _Handshake(Channel):
    """A channel whose ends have not proven yet that they hold the same secret."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._wanted = NONCE_BYTES
        self._key = b""

    def _take(self, data: bytearray | memoryview) -> int:
        place = 0
        while self._codec is None:
            if len(data) - place < self._wanted:
                return place
            part = bytes(data[place : place + self._wanted])
            place += self._wanted
            self._on_part(part)
        return place + super()._take(memoryview(data)[place:])

    def _on_part(self, part: bytes) -> None:
        raise NotImplementedError

    def _say(self, part: bytes) -> None:
        assert self._transport is not None
        self._transport.write(part)


class _Client(_Handshake):
    def __init__(self, secret: str, address: str) -> None:
        super().__init__(secret)
        self._address = address
        self.proven: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._say(self._nonce)

    def _on_part(self, part: bytes) -> None:
        if not self._key:
            self._key = derive_key(self._secret, self._nonce, part)
            self._wanted = MAC_BYTES
            self._say(proof(self._key, b"client"))
        elif part == REFUSAL:
            raise AuthenticationError(f"{self._address} refused this job's secret")
        elif not hmac.compare_digest(part, proof(self._key, b"server")):
            raise AuthenticationError(f"{self._address} does not hold this job's secret")
        else:
            self._codec = FrameCodec(self._key, b"c", b"s")
            if not self.proven.done():
                self.proven.set_result(None)

    def _end(self, error: Exception) -> None:
        super()._end(error)
        if not self.proven.done():
            self.proven.set_exception(error)


class _Server(_Handshake):
    def __init__(
        self,
        secret: str,
        timeout: float,
        on_channel: Callable[[Channel], None],
        on_refused: Callable[[AuthenticationError], None],
    ) -> None:
        super().__init__(secret)
        self._on_channel, self._on_refused = on_channel, on_refused
        self._deadline = self._loop.call_later(timeout, self._is_late)

    def _is_late(self) -> None:
        self._end(AuthenticationError(f"{self.peer} gave no proof of this job's secret"))

    def _on_part(self, part: bytes) -> None:
        if not self._key:
            self._key = derive_key(self._secret, part, self._nonce)
            self._wanted = MAC_BYTES
            self._say(self._nonce)
        elif not hmac.compare_digest(part, proof(self._key, b"client")):
            self._say(REFUSAL)
            raise AuthenticationError(f"{self.peer} does not hold this job's secret")
        else:
            self._deadline.cancel()
            self._codec = FrameCodec(self._key, b"s", b"c")
            self._say(proof(self._key, b"server"))
            self._on_channel(self)

    def _end(self, error: Exception) -> None:
        first = self._error is None
        super()._end(error)
        if first and self._codec is None:
            self._deadline.cancel()
            if not isinstance(error, AuthenticationError):
                error = AuthenticationError(f"{self.peer} gave no proof of this job's secret")
            self._on_refused(error)


async def connect(host: str, port: int, secret: str, timeout: float) -> Channel:
    """Connect to a coordinator and prove to each other that both hold ``secret``.

    Raises:
        AuthenticationError: the other end holds another secret.
        EOFError: it closed the connection before it had answered.
        OSError, TimeoutError: it cannot be reached; ConnectionRefusedError means that the host
            answers but no coordinator listens there.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, channel = await loop.create_connection(
            lambda: _Client(secret, f"{host}:{port}"), host, port
        )
        try:
            await channel.proven
        except BaseException:
            channel.abort()
            raise
    return channel


async def serve(
    host: str,
    port: int,
    secret: str,
    timeout: float,
    on_channel: Callable[[Channel], None],
    on_refused: Callable[[AuthenticationError], None],
) -> asyncio.Server:
    """Listen for ``connect``; who has not proven the secret in ``timeout`` seconds is refused.

    ``on_channel`` is called for each connection before anything was received over it.
    """
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: _Server(secret, timeout, on_channel, on_refused), host, port, backlog=4096
    )
