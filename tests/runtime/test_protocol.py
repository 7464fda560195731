"""Messages keep their meaning on the wire, and nobody without the secret can add one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import types
import typing
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import protocol as p

SECRET = "5ec7e7" * 8
FIRST = p.Fence(wid=1, why="first")
SECOND = p.Fence(wid=2, why="second")


def concrete_kinds() -> list[type[p.Message]]:
    kinds = [kind for kind in vars(p).values() if isinstance(kind, type)]
    messages = [kind for kind in kinds if issubclass(kind, p.Message)]
    return [kind for kind in messages if kind not in (p.Message, p.Report)]


KINDS = concrete_kinds()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        Any: json_values,
        type(None): st.none(),
        int: st.integers(),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
    }
    return plain[hint]


def messages_of(kind: type[p.Message]) -> st.SearchStrategy[p.Message]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})


any_message = st.sampled_from(KINDS).flatmap(messages_of)


def test_every_kind_is_known_by_its_name() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert len(names) == len(KINDS)
    assert names >= {"Hello", "Proposal", "Form", "Finish", "Summary"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_every_kind_survives_json_and_dictionary(kind: type[p.Message], data: Any) -> None:
    message = data.draw(messages_of(kind))
    line = p.to_json(message)
    assert b"\n" not in line
    assert p.from_json(line) == message
    assert p.from_dict(p.to_dict(message)) == message


@settings(max_examples=50, deadline=None)
@given(message=any_message)
def test_packing_and_unpacking_gives_the_same_message(message: p.Message) -> None:
    packed = p.pack(message)
    assert p.unpack(packed.flag, packed.body) == message


def test_a_long_message_is_compressed_and_a_short_one_is_not() -> None:
    long = p.Fence(wid=1, why="because " * p.COMPRESS_ABOVE)
    packed = p.pack(long)
    assert (packed.flag, p.pack(FIRST).flag) == (b"\x01", b"\x00")
    assert len(packed.body) < p.COMPRESS_ABOVE
    assert p.unpack(packed.flag, packed.body) == long


WRONG = {str: 1, int: "1", float: "1.0", bool: 1, list: {}, dict: []}


def wrong_fields() -> list[Any]:
    cases = []
    for kind in KINDS:
        for name, hint in typing.get_type_hints(kind).items():
            wrong = WRONG.get(typing.get_origin(hint) or hint, "neither number nor nothing")
            cases.append(pytest.param(kind, name, wrong, id=f"{kind.__name__}.{name}"))
    return cases


@pytest.mark.parametrize(("kind", "name", "wrong"), wrong_fields())
def test_a_field_of_another_type_is_refused(
    kind: type[p.Message], name: str, wrong: object
) -> None:
    with pytest.raises(p.ProtocolError, match=name):
        p.from_dict({"kind": kind.__name__, name: wrong})


def test_true_is_not_a_number() -> None:
    with pytest.raises(p.ProtocolError, match=r"Fence\.wid"):
        p.from_dict({"kind": "Fence", "wid": True, "why": ""})


def test_an_integer_stands_for_a_float() -> None:
    assert p.from_dict({"kind": "Lease", "sent": 3, "patience": 1}) == p.Lease(
        sent=3.0, patience=1.0
    )


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Fence", "wid": 1},
        {"kind": "Fence", "wid": 1, "why": "", "more": 1},
        {"kind": "Fnece"},
        {"kind": None},
        {"kind": ["Fence"]},
        {"kind": "__init__"},
        {},
    ],
)
def test_missing_fields_surplus_fields_and_unknown_kinds_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_dict(body)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"3", b'"Fence"', b"null", b"\xff\xfe", b"{}x"])
def test_what_is_no_json_object_is_refused(line: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(line)


@settings(max_examples=50, deadline=None)
@given(line=st.binary(max_size=60))
def test_random_bytes_are_refused_and_nothing_else_happens(line: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(line)


def test_deeply_nested_json_is_refused_like_any_other_nonsense() -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(b"[" * 100_000)


@pytest.mark.parametrize("name", ["Message", "Report"])
def test_the_base_of_messages_is_no_message(name: str) -> None:
    fields = {"wid": 1} if name == "Report" else {}
    with pytest.raises(p.ProtocolError):
        p.from_dict({"kind": name, **fields})


def test_a_body_that_inflates_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "MAX_FRAME", 1 << 16)
    bomb = zlib.compress(b" " * (1 << 20), 9)
    assert len(bomb) < 1 << 16
    with pytest.raises(p.ProtocolError, match="inflates"):
        p.unpack(b"\x01", bomb)


@pytest.mark.parametrize("body", [b"", b"not zlib", zlib.compress(p.to_json(FIRST))[:-12]])
def test_a_damaged_compressed_body_is_refused(body: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.unpack(b"\x01", body)


def test_expect_returns_the_wanted_kind_and_refuses_another() -> None:
    assert p.expect(FIRST, p.Fence) is FIRST
    with pytest.raises(p.ProtocolError, match="expected Halt, got Fence"):
        p.expect(FIRST, p.Halt)


# --- channels: somebody in the middle sees everything and holds no secret -------------------------


@dataclasses.dataclass
class Wire:
    """What a test may do with the two ends: ``to_server`` and ``to_client`` are the raw streams."""

    client: p.Channel
    server: p.Channel
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
        accepted: asyncio.Queue[p.Channel] = asyncio.Queue()
        middle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.put_nowait(await p.accept(reader, writer, SECRET, 5.0))

        async def intercept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward, outward = await asyncio.open_connection("127.0.0.1", port_of(real))
            for size in (p.NONCE_BYTES, p.MAC_BYTES):
                outward.write(await reader.readexactly(size))
                writer.write(await onward.readexactly(size))
            onwards.append(onward)
            middle.put_nowait((reader, writer))
            outwards.append(outward)

        onwards: list[asyncio.StreamReader] = []
        outwards: list[asyncio.StreamWriter] = []
        real = await asyncio.start_server(serve, "127.0.0.1", 0)
        false = await asyncio.start_server(intercept, "127.0.0.1", 0)
        async with real, false:
            client = await p.connect("127.0.0.1", port_of(false), SECRET, 5.0)
            server = await accepted.get()
            reader, writer = await middle.get()
            await scenario(Wire(client, server, outwards[0], writer, reader))
            for end in (client, server):
                end.abort()
            for stream in (outwards[0], writer):
                stream.transport.abort()

    asyncio.run(asyncio.wait_for(run(), 20))


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def test_frames_that_pass_untouched_arrive_in_order() -> None:
    async def scenario(wire: Wire) -> None:
        for message in (FIRST, SECOND):
            wire.client.send(message)
            wire.to_server.write(await wire.next_frame())
            assert await wire.server.receive() == message

    through_a_middle(scenario)


@pytest.mark.parametrize("place", [4, 4 + p.MAC_BYTES, 5 + p.MAC_BYTES, -1])
def test_a_flipped_bit_in_mac_flag_or_body_is_refused(place: int) -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        frame = bytearray(await wire.next_frame())
        frame[place] ^= 1
        wire.to_server.write(bytes(frame))
        with pytest.raises(p.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_replayed_frame_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        frame = await wire.next_frame()
        wire.to_server.write(frame * 2)
        assert await wire.server.receive() == FIRST
        with pytest.raises(p.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_frame_that_overtakes_another_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.client.send(SECOND)
        await wire.next_frame()
        wire.to_server.write(await wire.next_frame())
        with pytest.raises(p.AuthenticationError):
            await wire.server.receive()

    through_a_middle(scenario)


def test_a_frame_sent_back_to_its_author_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        wire.client.send(FIRST)
        wire.to_client.write(await wire.next_frame())
        with pytest.raises(p.AuthenticationError):
            await wire.client.receive()

    through_a_middle(scenario)


@pytest.mark.parametrize("size", [0, p.MAC_BYTES, p.MAX_FRAME + 1, 2**32 - 1])
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

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                answered.put_nowait(await p.accept(reader, writer, server_secret, 5.0))
            except p.ProtocolError as error:
                answered.put_nowait(error)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            got: object
            try:
                got = await p.connect("127.0.0.1", port_of(server), client_secret, 5.0)
            except p.ProtocolError as error:
                got = error
            accepted = await answered.get()
            for end in (got, accepted):
                if isinstance(end, p.Channel):
                    end.abort()
            return got, accepted

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_both_ends_with_the_secret_get_a_channel() -> None:
    assert all(isinstance(end, p.Channel) for end in handshake(SECRET, SECRET))


def test_another_secret_is_refused_on_both_sides() -> None:
    ends = handshake(SECRET, "another")
    assert [type(end) for end in ends] == [p.AuthenticationError] * 2


def connect_to(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            channel = await p.connect("127.0.0.1", port_of(server), SECRET, 5.0)
            channel.abort()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_impostor_that_accepts_any_client_is_refused() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(p.NONCE_BYTES)
        writer.write(bytes(p.NONCE_BYTES))
        await reader.readexactly(p.MAC_BYTES)
        writer.write(b"\x01" * p.MAC_BYTES)

    with pytest.raises(p.AuthenticationError, match="does not hold"):
        connect_to(impostor)


def test_a_client_proof_sent_back_does_not_pass_for_a_server_proof() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for size in (p.NONCE_BYTES, p.MAC_BYTES):
            writer.write(await reader.readexactly(size))

    with pytest.raises(p.AuthenticationError):
        connect_to(mirror)


def test_a_coordinator_that_dies_before_it_answers_has_not_refused_the_secret() -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(p.NONCE_BYTES)
        writer.close()

    with pytest.raises((EOFError, OSError)):
        connect_to(dies)


def test_a_client_that_says_nothing_is_refused_in_time() -> None:
    async def run() -> None:
        refused: asyncio.Queue[Exception] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await p.accept(reader, writer, SECRET, 0.01)
            except p.AuthenticationError as error:
                refused.put_nowait(error)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            assert "no proof" in str(await refused.get())
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_keys_differ_between_connections_and_secrets() -> None:
    nonces = (bytes(16), bytes(15) + b"\x01")
    keys = {p.derive_key(secret, a, b) for secret in "xy" for a in nonces for b in nonces}
    assert len(keys) == 8
    assert p.proof(b"k", b"client") != p.proof(b"k", b"server")
    assert p.new_secret() != p.new_secret()
    assert len(json.dumps(p.new_secret())) == 66
