"""A channel keeps messages and their order, and nobody without the secret can add one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import channel as c
from keepstep.runtime import handshake as h
from keepstep.runtime import protocol as p
from tests.runtime.test_protocol import KINDS, messages_of

SECRET = "5ec7e7" * 8
FIRST = p.Fence(wid=1, why="first")
SECOND = p.Fence(wid=2, why="second")


@settings(max_examples=50, deadline=None)
@given(message=st.sampled_from(KINDS).flatmap(messages_of))
def test_packing_and_unpacking_gives_the_same_messages(message: p.Message) -> None:
    packed = c.pack(message, FIRST)
    assert c.unpack(packed.flag, packed.body) == [message, FIRST]


def test_a_long_body_is_compressed_and_a_short_one_is_not() -> None:
    long = p.Fence(wid=1, why="because " * c.COMPRESS_ABOVE)
    packed = c.pack(long)
    assert (packed.flag, c.pack(FIRST).flag) == (c.COMPRESSED, c.PLAIN)
    assert len(packed.body) < c.COMPRESS_ABOVE
    assert c.unpack(packed.flag, packed.body) == [long]


def test_a_body_that_inflates_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "MAX_FRAME", 1 << 16)
    bomb = zlib.compress(b" " * (1 << 20), 9)
    assert len(bomb) < 1 << 16
    with pytest.raises(p.ProtocolError, match="inflates"):
        c.unpack(b"\x01", bomb)


@pytest.mark.parametrize("body", [b"", b"not zlib", zlib.compress(p.to_json(FIRST))[:-12]])
def test_a_damaged_compressed_body_is_refused(body: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        c.unpack(b"\x01", body)


# --- channels: somebody in the middle sees everything and holds no secret -------------------------


@dataclasses.dataclass
class Wire:
    """What a test may do with the two ends: ``to_server`` and ``to_client`` are the raw streams."""

    client: c.Channel
    server: c.Channel
    to_server: asyncio.StreamWriter
    to_client: asyncio.StreamWriter
    seen_by_middle: asyncio.StreamReader  # bytes that the client sent

    async def next_frame(self) -> bytes:
        """Take the next frame of the client off the wire."""
        head = await self.seen_by_middle.readexactly(4)
        return head + await self.seen_by_middle.readexactly(struct.unpack(">I", head)[0])


def through_a_middle(scenario: Callable[[Wire], Awaitable[None]]) -> None:
    """Run ``scenario``: the handshake passes untouched, then frames pass only by hand."""

    async def run() -> None:
        accepted: asyncio.Queue[c.Channel] = asyncio.Queue()
        middle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def intercept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward, outward = await asyncio.open_connection("127.0.0.1", port_of(real))
            for size in (h.NONCE_BYTES, h.MAC_BYTES):
                outward.write(await reader.readexactly(size))
                writer.write(await onward.readexactly(size))
            onwards.append(onward)
            middle.put_nowait((reader, writer))
            outwards.append(outward)

        onwards: list[asyncio.StreamReader] = []
        outwards: list[asyncio.StreamWriter] = []
        real = await listen(SECRET, 5.0, accepted.put_nowait)
        false = await asyncio.start_server(intercept, "127.0.0.1", 0)
        async with real, false:
            client = await c.connect("127.0.0.1", port_of(false), SECRET, 5.0)
            server = await accepted.get()
            reader, writer = await middle.get()
            await scenario(Wire(client, server, outwards[0], writer, reader))
            for end in (client, server):
                end.abort()
            for stream in (outwards[0], writer):
                stream.transport.abort()

    asyncio.run(asyncio.wait_for(run(), 20))


async def listen(secret: str, timeout: float, got: Callable[[Any], None]) -> asyncio.Server:
    """Serve on a free port; ``got`` takes channels and refusals."""
    return await c.serve("127.0.0.1", 0, secret, timeout, got, got)


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def test_frames_that_pass_untouched_arrive_in_order() -> None:
    async def scenario(wire: Wire) -> None:
        for message in (FIRST, SECOND):
            wire.client.send(message)
            wire.to_server.write(await wire.next_frame())
            assert await wire.server.receive() == message

    through_a_middle(scenario)


def test_messages_of_one_turn_share_a_frame_and_keep_their_order() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.client.send(SECOND)
        wire.to_server.write(await wire.next_frame())
        assert [await wire.server.receive() for _ in range(2)] == [FIRST, SECOND]

    through_a_middle(scenario)


def test_a_body_for_many_does_not_overtake_what_was_said_before() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.client.send(c.pack(SECOND))
        wire.client.send(FIRST)
        for message in (FIRST, SECOND, FIRST):
            wire.to_server.write(await wire.next_frame())
            assert await wire.server.receive() == message

    through_a_middle(scenario)


def test_many_messages_of_one_turn_become_several_frames() -> None:
    half = p.Fence(wid=1, why="x" * (c.BATCH // 2 + 1))

    async def scenario(wire: Wire) -> None:
        for _ in range(3):
            wire.client.send(half)
        for _ in range(2):
            wire.to_server.write(await wire.next_frame())
        assert [await wire.server.receive() for _ in range(3)] == [half] * 3

    through_a_middle(scenario)


def test_a_frame_that_arrives_byte_by_byte_is_read() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        for byte in await wire.next_frame():
            wire.to_server.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await wire.server.receive() == FIRST

    through_a_middle(scenario)


def test_what_was_queued_before_a_close_still_arrives() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.client.close()
        wire.to_server.write(await wire.next_frame())
        assert await wire.server.receive() == FIRST

    through_a_middle(scenario)


def test_a_listener_is_told_every_message_and_the_end_once() -> None:
    async def scenario(wire: Wire) -> None:
        told: asyncio.Queue[object] = asyncio.Queue()
        wire.client.send(FIRST)
        wire.to_server.write(await wire.next_frame())
        assert await wire.server.receive() == FIRST
        wire.server.listen(told.put_nowait, told.put_nowait)
        wire.client.send(SECOND)
        wire.client.send(FIRST)
        wire.to_server.write(await wire.next_frame())
        assert await told.get() == [SECOND, FIRST]
        wire.to_server.close()
        assert isinstance(await told.get(), EOFError)
        wire.server.abort()
        await asyncio.sleep(0)
        assert told.empty()

    through_a_middle(scenario)


@pytest.mark.parametrize("place", [4, 4 + h.MAC_BYTES, 5 + h.MAC_BYTES, -1])
def test_a_flipped_bit_in_mac_flag_or_body_is_refused(place: int) -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        frame = bytearray(await wire.next_frame())
        frame[place] ^= 1
        wire.to_server.write(bytes(frame))
        with pytest.raises(h.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_replayed_frame_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        frame = await wire.next_frame()
        wire.to_server.write(frame * 2)
        assert await wire.server.receive() == FIRST
        with pytest.raises(h.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_frame_that_overtakes_another_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(c.pack(FIRST))
        wire.client.send(c.pack(SECOND))
        await wire.next_frame()
        wire.to_server.write(await wire.next_frame())
        with pytest.raises(h.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_frame_sent_back_to_its_author_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.to_client.write(await wire.next_frame())
        with pytest.raises(h.AuthenticationError):
            await wire.client.receive()

    through_a_middle(scenario)


@pytest.mark.parametrize("size", [0, h.MAC_BYTES, c.MAX_FRAME + 1, 2**32 - 1])
def test_a_frame_of_impossible_size_is_refused_before_it_is_read(size: int) -> None:
    async def scenario(wire: Wire) -> None:
        wire.to_server.write(struct.pack(">I", size))
        with pytest.raises(p.ProtocolError, match="frame of"):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_connection_that_ends_inside_a_frame_is_an_end_of_file() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.to_server.write((await wire.next_frame())[:-1])
        wire.to_server.close()
        with pytest.raises(EOFError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_compressed_message_passes() -> None:
    long = p.Abort(why="reason " * 10_000, code=1)

    async def scenario(wire: Wire) -> None:
        wire.client.send(long)
        wire.to_server.write(await wire.next_frame())
        assert await wire.server.receive() == long

    through_a_middle(scenario)


# --- handshake ------------------------------------------------------------------------------------


def handshake(server_secret: str, client_secret: str) -> tuple[object, object]:
    """Return what each end got: a channel, or the error that it raised."""

    async def run() -> tuple[object, object]:
        answered: asyncio.Queue[object] = asyncio.Queue()

        server = await listen(server_secret, 5.0, answered.put_nowait)
        async with server:
            got: object
            try:
                got = await c.connect("127.0.0.1", port_of(server), client_secret, 5.0)
            except p.ProtocolError as error:
                got = error
            accepted = await answered.get()
            for end in (got, accepted):
                if isinstance(end, c.Channel):
                    end.abort()
            return got, accepted

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_both_ends_with_the_secret_get_a_channel() -> None:
    assert all(isinstance(end, c.Channel) for end in handshake(SECRET, SECRET))


def test_another_secret_is_refused_on_both_sides() -> None:
    ends = handshake(SECRET, "another")
    assert [type(end) for end in ends] == [h.AuthenticationError] * 2


def connect_to(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            channel = await c.connect("127.0.0.1", port_of(server), SECRET, 5.0)
            channel.abort()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_impostor_that_accepts_any_client_is_refused() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(h.NONCE_BYTES)
        writer.write(bytes(h.NONCE_BYTES))
        await reader.readexactly(h.MAC_BYTES)
        writer.write(b"\x01" * h.MAC_BYTES)

    with pytest.raises(h.AuthenticationError, match="does not hold"):
        connect_to(impostor)


def test_a_client_proof_sent_back_does_not_pass_for_a_server_proof() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for size in (h.NONCE_BYTES, h.MAC_BYTES):
            writer.write(await reader.readexactly(size))

    with pytest.raises(h.AuthenticationError):
        connect_to(mirror)


def test_a_coordinator_that_dies_before_it_answers_has_not_refused_the_secret() -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(h.NONCE_BYTES)
        writer.close()

    with pytest.raises((EOFError, OSError)):
        connect_to(dies)


def test_a_client_that_says_nothing_is_refused_in_time() -> None:
    async def run() -> None:
        refused: asyncio.Queue[Exception] = asyncio.Queue()

        server = await listen(SECRET, 0.01, refused.put_nowait)
        async with server:
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            assert "no proof" in str(await refused.get())
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_keys_differ_between_connections_and_secrets() -> None:
    nonces = (bytes(16), bytes(15) + b"\x01")
    keys = {h.derive_key(secret, a, b) for secret in "xy" for a in nonces for b in nonces}
    assert len(keys) == 8
    assert h.proof(b"k", b"client") != h.proof(b"k", b"server")
    assert h.new_secret() != h.new_secret()
    assert len(json.dumps(h.new_secret())) == 66
