"""The typed messages between worker, agent and coordinator, and how they travel.

Every message is a frozen dataclass. On the wire it is one JSON object whose ``kind`` names the
class. Between agent and coordinator a message travels in an authenticated frame::

    length (4 bytes, big endian) | HMAC-SHA256 (32 bytes) | flag (1 byte) | body

The HMAC covers a direction byte, the frame's number in this direction, the flag and the body under
a key that both ends derive from the job's secret and two fresh nonces: a frame that is forged,
replayed, reordered or sent back to its author is refused. Nothing is ever unpickled.

Between a worker and its agent messages are JSON lines on a socket pair that the worker inherits;
nobody else can reach it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import json
import os
import struct
import types
import typing
import zlib
from dataclasses import dataclass, field
from typing import Any, TypeVar

MAX_FRAME = 64 * 1024 * 1024  # a form message for 16,000 ranks is about 1 MiB before compression
COMPRESS_ABOVE = 4096
NONCE_BYTES = 16
MAC_BYTES = 32
REFUSAL = b"\0" * MAC_BYTES  # a server's answer to a wrong proof; silence means that it died
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


class ProtocolError(Exception):
    """A message that cannot be read: not JSON, unknown kind, missing or wrong field."""


class AuthenticationError(ProtocolError):
    """The other end does not hold this job's secret, or a frame was altered on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Base of all messages."""


# --- worker -> coordinator (through its agent) ------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(Message):
    """Something that one worker says about itself."""

    wid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched(Report):
    """The agent started this worker; said by the agent, so that every loss can name the process."""

    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Report):
    """The script called ``keepstep.join()``."""

    torch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready(Report):
    """The script reached ``Job.train``: model built, process group created, waiting for a rank."""

    handle: str
    steps: int
    digest: str
    address: str
    start: int = 0  # steps committed in what it holds; -1: it looked for no checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFailed(Report):
    """The step raised and no halt had been ordered: the worker waits for one."""

    generation: int
    step: int
    error: str
    origin: str  # "step": the user's code; "collective": a peer went away; "device"; "memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal(Report):
    """A halted worker: what it holds. ``committed`` counts complete steps."""

    generation: int
    committed: int
    clean: bool
    digest: str
    handle: str
    entry: int  # per-rank state is known for this many steps (committed, or one more)
    member: bool = True  # it was in a generation; a spare that never was holds only what it built


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed(Report):
    """The worker is a member of this generation and holds the agreed state."""

    generation: int
    step: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormFailed(Report):
    """The worker could not enter this generation (a peer vanished, a transfer failed its check)."""

    generation: int
    error: str
    handle: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed(Report):
    """The first step of a generation was committed ``ago`` seconds before this was sent."""

    generation: int
    committed: int
    ago: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotTaken(Report):
    """A snapshot lies in the vault of the worker's agent. ``payload``: with replicated state."""

    rank: int
    committed: int
    digest: str
    payload: bool
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointed(Report):
    """A checkpoint has been saved, or (``why``) has not. Said by rank 0."""

    step: int
    folder: str
    seconds: float  # from its copy in memory to its final name
    held: float  # of them, during which the training was held
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done(Report):
    """All steps are committed; the worker waits for ``Finish``."""

    generation: int
    committed: int
    digest: str
    handle: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fired(Report):
    """An injected fault is about to happen, or (``ago``) happened that long ago."""

    index: int
    step: int
    ago: float = 0.0


# --- agent -> coordinator ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello(Message):
    """First message of an agent, also after the coordinator or the network came back."""

    agent: str
    host: str
    sent: float  # the agent's clock
    address: str  # where its vault is served
    workers: int
    spares: int
    wids: list[int]  # every worker that it was told to launch
    standing: list[dict[str, Any]] = field(default_factory=list)  # what each said last


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Message):
    """What the agent read of one worker, without its help. Ages in seconds."""

    wid: int
    generation: int
    step: int
    committed: int
    phase: int
    age: float  # since the training thread last published anything new
    side_age: float  # since the worker's side thread last ran
    sequence: int  # collectives entered on the default group in this generation
    state: str  # process state as in /proc/PID/stat: R, S, D, T, Z
    cpu: bool  # the main thread used processor time lately
    step_seconds: float
    busy_seconds: float  # of the last step, outside collectives


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat(Message):
    """Progress of all workers of one agent; ``sent`` is the agent's clock."""

    sent: float
    workers: list[list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited(Message):
    """A worker process is gone. ``fault`` is exit, signal or fence; records say what it left."""

    wid: int
    fault: str
    code: int
    committed: int
    entry: int
    ago: float  # since its last sign of life
    joined: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept(Message):
    """Answer to ``Recall``: what this agent mirrored of a worker of a lost host."""

    wid: int
    committed: int
    entry: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRows(Message):
    """Samples that workers used, as far as this agent's vault knows: [worker, *run]."""

    rows: list[list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged(Message):
    """The diagnosis of an incident, from the evidence that this agent has."""

    incident: str
    folder: str
    outcome: str
    ranks: list[int]
    fault: str
    headline: str
    seconds: float  # from the incident's end to the verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodbye(Message):
    """The agent leaves of its own will (its workers are gone)."""

    agent: str


# --- coordinator -> agent ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome(Message):
    """Settings of the job that every agent must share."""

    sent: float  # echo of the hello
    patience: float
    world_size: int
    store: str
    injections: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(Message):
    """Answer to a beat: the agent's workers may go on for another lease, counted from ``sent``.

    ``sent`` echoes the beat: however long the answer was under way, the agent's lease ends no later
    than the coordinator's reckoning of it, which starts when the beat arrived.
    """

    sent: float
    patience: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Message):
    """Start these workers. ``ranks``: what RANK says to each; beyond the ranks for a spare."""

    wids: list[int]
    ranks: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence(Message):
    """Kill this worker now and confirm with ``Exited``."""

    wid: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall(Message):
    """Say what you mirrored of these workers, whose host is lost."""

    wids: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Halt(Message):
    """Leave the current generation: at once, or after ``at_step`` steps are committed."""

    generation: int
    wids: list[int]
    at_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Form(Message):
    """One generation: who has which rank, from which state it starts, who gives it to whom."""

    generation: int
    uuid: int
    members: list[int]  # worker of each rank
    handles: list[str]
    start_step: int
    source: str  # "live": from donors; "snapshot": everybody goes back to one
    donors: list[list[Any]]  # [wid, address]
    receivers: list[int]
    digest: str
    rank_state: dict[str, list[Any]]  # rank -> [worker or agent address, wid that left it, step]
    snapshot_every: int
    fired: list[int]
    timeout: float
    mirrors: dict[str, list[Any]]  # agent -> [address of the vault that it mirrors, workers there]


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotEvery(Message):
    """From ``from_step`` on, take a snapshot when the step count is a multiple of ``every``."""

    every: int
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Testify(Message):
    """Agent to worker: leave a recorder dump and stacks in the vault, now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident(Message):
    """One or more faults have been dealt with: write down what each rank left."""

    name: str
    generation: int  # in which it happened
    step: int
    members: list[list[Any]]  # of that generation: [rank, worker, agent, host]
    faults: list[dict[str, Any]]  # rank, worker, fault, evidence
    outcome: str
    lead: str  # the agent that asks for the verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Message):
    """Every step is done and every replica agrees: ``Job.train`` returns, spares leave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abort(Message):
    """The job ends here."""

    why: str
    code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Message):
    """A fact for the event log and the operator's eyes."""

    fact: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview(Message):
    """The job as the coordinator knows it, for the operator's view and the metrics."""

    steps: int
    median_step: float
    spares_ready: int
    recoveries: list[list[Any]]  # [fault, action, how many]
    workers: list[list[Any]]  # of other hosts: [wid, host, pid, ready, being fenced, progress]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary(Message):
    """The job's end as the coordinator saw it."""

    facts: dict[str, Any]


M = TypeVar("M", bound=Message)


def _all_kinds(base: type[Message]) -> dict[str, type[Message]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_all_kinds(child))
    return found


_KINDS = {name: kind for name, kind in _all_kinds(Message).items() if kind not in (Message, Report)}
_FIELDS = {name: [entry.name for entry in dataclasses.fields(_KINDS[name])] for name in _KINDS}
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one for each message
_HINTS = {name: typing.get_type_hints(kind) for name, kind in _KINDS.items()}


def to_json(message: Message) -> bytes:
    """Return ``message`` as one line of JSON without a line break."""
    kind = type(message).__name__
    body = {name: getattr(message, name) for name in _FIELDS[kind]}
    return _ENCODER.encode({"kind": kind, **body}).encode()


def from_json(line: bytes) -> Message:
    """Return the message in ``line``.

    Raises:
        ProtocolError: not a JSON object, unknown kind, or fields that do not fit.
    """
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"a message is a JSON object, this is {type(body).__name__}")
    return from_dict(body)


def from_dict(body: dict[str, Any]) -> Message:
    """Return the message that ``body`` describes; its fields are checked against their types."""
    fields = dict(body)
    name = fields.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"unknown kind of message: {name!r}")
    hints = _HINTS[kind.__name__]
    for key, value in fields.items():
        if key not in hints or not _fits(value, hints[key]):
            raise ProtocolError(f"{name}.{key} does not fit: {str(value)[:80]!r}")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ProtocolError(f"{name}: {error}") from error


def to_dict(message: Message) -> dict[str, Any]:
    """Return the dictionary from which ``from_dict`` makes an equal message."""
    found: dict[str, Any] = json.loads(to_json(message))
    return found


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def expect(message: Message, kind: type[M]) -> M:
    """Return ``message`` if it is a ``kind``; raise ProtocolError otherwise."""
    if not isinstance(message, kind):
        raise ProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


@dataclass(frozen=True, slots=True)
class Packed:
    """A message ready for any number of channels: serialised (and compressed) once."""

    flag: bytes
    body: bytes


def pack(message: Message) -> Packed:
    """Serialise ``message``, compressed when that saves bandwidth."""
    body = to_json(message)
    if len(body) <= COMPRESS_ABOVE:
        return Packed(b"\x00", body)
    return Packed(b"\x01", zlib.compress(body, 1))


def unpack(flag: bytes, body: bytes) -> Message:
    """Undo ``pack``; a body that inflates beyond the frame limit is refused."""
    if flag == b"\x01":
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, MAX_FRAME)
        except zlib.error as error:
            raise ProtocolError(f"damaged frame: {error}") from error
        if inflate.unconsumed_tail:
            raise ProtocolError(f"frame inflates beyond {MAX_FRAME} bytes")
    return from_json(body)


def new_secret() -> str:
    """Return a fresh per-job secret, 64 hexadecimal digits."""
    return os.urandom(32).hex()


class Channel:
    """An authenticated, ordered message channel over a stream; made by ``connect``/``accept``."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        directions: tuple[bytes, bytes],
    ) -> None:
        """Use ``connect`` or ``accept`` instead."""
        self._reader, self._writer, self._key = reader, writer, key
        self._send_direction, self._receive_direction = directions
        self._sent = self._received = 0

    @property
    def peer(self) -> str:
        """Address of the other end, for logs."""
        name = self._writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "unknown"

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        transport = self._writer.transport
        return transport.get_write_buffer_size()

    def _mac(self, direction: bytes, number: int, flag: bytes, body: bytes) -> bytes:
        head = direction + _NUMBER.pack(number) + flag
        return hmac.digest(self._key, head + body, "sha256")

    def send(self, message: Message | Packed) -> None:
        """Queue ``message``; never waits. Call ``drain`` where back-pressure is wanted."""
        packed = message if isinstance(message, Packed) else pack(message)
        mac = self._mac(self._send_direction, self._sent, packed.flag, packed.body)
        self._sent += 1
        size = _LENGTH.pack(MAC_BYTES + 1 + len(packed.body))
        self._writer.write(b"".join((size, mac, packed.flag, packed.body)))

    async def drain(self) -> None:
        """Wait until the send buffer has room."""
        await self._writer.drain()

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            EOFError: the other end closed.
            AuthenticationError: a frame that the other end cannot have sent.
        """
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if not MAC_BYTES < size <= MAX_FRAME:
                raise ProtocolError(f"frame of {size} bytes")
            frame = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError(f"{self.peer} closed the connection") from error
        mac, flag, body = (
            frame[:MAC_BYTES],
            frame[MAC_BYTES : MAC_BYTES + 1],
            frame[MAC_BYTES + 1 :],
        )
        wanted = self._mac(self._receive_direction, self._received, flag, body)
        if not hmac.compare_digest(mac, wanted):
            raise AuthenticationError(f"frame {self._received} from {self.peer} fails its check")
        self._received += 1
        return unpack(flag, body)

    def close(self) -> None:
        """Close; queued messages are still sent."""
        self._writer.close()

    def abort(self) -> None:
        """Drop the connection at once; a pending ``receive`` ends."""
        self._writer.transport.abort()


def derive_key(secret: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the key of one connection."""
    seed = b"keepstep" + client_nonce + server_nonce
    return hmac.digest(secret.encode(), seed, hashlib.sha256)


def proof(key: bytes, role: bytes) -> bytes:
    """Return what an end sends to show that it derived the same key."""
    return hmac.digest(key, b"proof of " + role, "sha256")


async def connect(host: str, port: int, secret: str, timeout: float) -> Channel:
    """Connect to a coordinator and prove to each other that both hold ``secret``.

    Raises:
        AuthenticationError: the other end holds another secret.
        OSError, TimeoutError: it cannot be reached; ConnectionRefusedError means that the host
            answers but no coordinator listens there.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            mine = os.urandom(NONCE_BYTES)
            writer.write(mine)
            theirs = await _first_answer(reader, f"{host}:{port}")
            key = derive_key(secret, mine, theirs)
            writer.write(proof(key, b"client"))
            answer = await reader.readexactly(MAC_BYTES)
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise EOFError(f"{host}:{port} closed the connection") from error
        except BaseException:
            writer.close()
            raise
        if answer == REFUSAL:
            writer.close()
            raise AuthenticationError(f"{host}:{port} refused this job's secret")
        if not hmac.compare_digest(answer, proof(key, b"server")):
            writer.close()
            raise AuthenticationError(f"{host}:{port} does not hold this job's secret")
    return Channel(reader, writer, key, (b"c", b"s"))


async def _first_answer(reader: asyncio.StreamReader, address: str) -> bytes:
    """Return the server's nonce; one that ends before it has refused nothing."""
    try:
        return await reader.readexactly(NONCE_BYTES)
    except asyncio.IncompleteReadError as error:
        raise EOFError(f"{address} closed the connection") from error


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, timeout: float
) -> Channel:
    """Answer ``connect``; a client without the secret is refused before it can say anything.

    Raises:
        AuthenticationError: wrong or missing proof within ``timeout`` seconds.
    """
    peer = writer.get_extra_info("peername")
    try:
        async with asyncio.timeout(timeout):
            theirs = await reader.readexactly(NONCE_BYTES)
            mine = os.urandom(NONCE_BYTES)
            writer.write(mine)
            key = derive_key(secret, theirs, mine)
            answer = await reader.readexactly(MAC_BYTES)
    except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
        writer.close()
        raise AuthenticationError(f"{peer} gave no proof of this job's secret") from error
    if not hmac.compare_digest(answer, proof(key, b"client")):
        writer.write(REFUSAL)
        writer.close()
        raise AuthenticationError(f"{peer} does not hold this job's secret")
    writer.write(proof(key, b"server"))
    return Channel(reader, writer, key, (b"s", b"c"))
