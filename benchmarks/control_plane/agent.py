"""One simulated agent with its workers: a plain socket and what is to be said next."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.control_plane.process import STORE
from keepstep.runtime import protocol as p
from keepstep.runtime.channel import FrameCodec, Packed, pack
from keepstep.runtime.handshake import MAC_BYTES, NONCE_BYTES, derive_key, proof
from keepstep.runtime.progress import Phase as Doing

STEPS = 1_000_000  # of the job: it never ends by itself
PATIENCE = 30.0  # seconds; a simulated stall is older when it is told
_LENGTH = struct.Struct(">I")
_HEAD = _LENGTH.size + MAC_BYTES + 1


def digest(step: int) -> str:
    """Return 64 hexadecimal digits for the state after ``step`` steps."""
    return f"{(step + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC834:064x}"[-64:]


def handle(wid: int, rank: int, generation: int) -> str:
    """Return a process group's handle as gloo's look in PyTorch 2.15.0; -1: not formed yet."""
    return f"gloo:{rank}:{generation}:{wid}:{STORE}"


@dataclass(slots=True)
class Agent:
    """One host. ``ranks``: worker -> rank of its members; ``wids``: all workers that live."""

    number: int
    port: int
    secret: str
    together: bool  # answers of one host's workers share a frame
    wids: set[int] = field(default_factory=set)
    ranks: dict[int, int] = field(default_factory=dict)
    stopped: int = -1  # a worker
    proposed: int = 0  # newest generation for which its members have left their step
    leased: float = 0.0  # when it had said the newest beat that was answered
    received: int = 0  # newest generation that it was told to form
    connection: socket.socket = field(init=False)
    codec: FrameCodec = field(init=False)
    rest: bytearray = field(default_factory=bytearray)
    answers: tuple[int, int, list[Packed]] | None = None  # generation, step, what to say to a halt

    @property
    def name(self) -> str:
        """Return how it introduces itself."""
        return f"host{self.number:05d}"

    @property
    def address(self) -> str:
        """Return where its vault would be."""
        return f"10.{self.number >> 16}.{self.number >> 8 & 255}.{self.number & 255}:40000"

    def connect(self) -> None:
        """Prove that we hold the secret, as ``channel.connect`` does."""
        self.connection = socket.create_connection(("127.0.0.1", self.port), 60)
        nonce = os.urandom(NONCE_BYTES)
        self.connection.sendall(nonce)
        key = derive_key(self.secret, nonce, self._read(NONCE_BYTES))
        self.connection.sendall(proof(key, b"client"))
        if not hmac.compare_digest(self._read(MAC_BYTES), proof(key, b"server")):
            raise RuntimeError("the coordinator refused the secret")
        self.codec = FrameCodec(key, b"c", b"s")
        self.connection.settimeout(60)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.connection.recv(size - len(found))
            if not part:
                raise RuntimeError("the coordinator closed the connection")
            found += part
        return found

    # --- frames -----------------------------------------------------------------------------------

    def say(self, *messages: p.Message) -> None:
        """Send messages: in one frame, or each in its own."""
        for packed in self.prepared(*messages):
            self.send(packed)

    def prepared(self, *messages: p.Message) -> list[Packed]:
        """Return what ``say`` would send."""
        if self.together:
            return [pack(*messages)]
        return [pack(message) for message in messages]

    def send(self, packed: Packed) -> None:
        """Send one frame."""
        self.connection.sendall(self.codec.head(packed) + packed.body)

    def frames(self, arrived: memoryview) -> list[tuple[bytes, bytes, bytes]]:
        """Return MAC, flag and body of each whole frame; the rest waits."""
        data: bytearray | memoryview = arrived
        if self.rest:
            self.rest += arrived
            data = self.rest
        found, place = [], 0
        while len(data) - place >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, place)
            after = place + _LENGTH.size + size
            if after > len(data):
                break
            mac = bytes(data[place + _LENGTH.size : place + _HEAD - 1])
            flag = bytes(data[place + _HEAD - 1 : place + _HEAD])
            found.append((mac, flag, bytes(data[place + _HEAD : after])))
            place = after
        if data is self.rest:
            del self.rest[:place]
        elif place < len(data):
            self.rest += data[place:]
        return found

    # --- what it says -----------------------------------------------------------------------------

    def hello(self, ranks: int, spares: int) -> None:
        """Introduce itself."""
        self.say(
            p.Hello(
                agent=self.name,
                host=self.address.partition(":")[0],
                sent=time.monotonic(),
                address=self.address,
                workers=ranks,
                spares=spares,
                wids=[],
            )
        )

    def start(self, wids: list[int]) -> None:
        """Processes are launched and get as far as to wait for a rank."""
        self.wids.update(wids)
        said: list[p.Message] = []
        for wid in wids:
            address = f"{self.address.partition(':')[0]}:{41_000 + wid % 1000}"
            said += [
                p.Launched(wid=wid, pid=10_000 + wid),
                p.Joined(wid=wid, torch="2.15.0"),
                p.Ready(
                    wid=wid,
                    handle=handle(wid, wid, -1),
                    steps=STEPS,
                    digest=digest(0),
                    address=address,
                ),
            ]
        self.say(*said)

    def beat(self, step: int, stalled: bool) -> None:
        """Say what it reads of each worker; in a stall all members wait for one."""
        rows = [self._row(wid, step, stalled) for wid in self.wids]
        self.send(pack(p.Beat(sent=time.monotonic(), workers=rows)))

    def _row(self, wid: int, step: int, stalled: bool) -> list[Any]:
        member, stopped = wid in self.ranks, wid == self.stopped
        age = PATIENCE * (1.1 if stopped else 1.05) if stalled and member else 0.2
        row = p.Progress(
            wid=wid,
            generation=self.received if member else 0,
            step=step,
            committed=step,
            phase=int(Doing.COLLECTIVE if member else Doing.WAITING),
            age=age,
            side_age=age if stopped else 0.02,
            sequence=4 * step,
            state="T" if stopped else "S",
            cpu=False,
            step_seconds=1.0 + 0.001 * (wid % 7) if member else 0.0,
            busy_seconds=0.8 + 0.001 * (wid % 7) if member else 0.0,
        )
        return list(row)

    def exit(self, wid: int, fault: str, step: int) -> None:
        """A process is gone."""
        self.wids.discard(wid)
        self.ranks.pop(wid, None)
        self.stopped = -1 if wid == self.stopped else self.stopped
        self.answers = None
        self.say(
            p.Exited(
                wid=wid, fault=fault, code=-9, committed=step, entry=step, ago=0.0, joined=True
            )
        )

    def prepare(self, generation: int, step: int) -> None:
        """Make ready what its members will say when ``generation`` is about to be formed."""
        held = [
            p.Proposal(
                wid=wid,
                generation=generation,
                committed=step,
                clean=True,
                digest=digest(step),
                handle=handle(wid, rank, generation - 1),
                entry=step,
            )
            for wid, rank in self.ranks.items()
            if wid != self.stopped
        ]
        self.answers = (generation, step, self.prepared(*held) if held else [])

    def on_halt(self, generation: int, step: int) -> None:
        """All members leave their step."""
        if self.proposed >= generation:
            return
        self.proposed = generation
        if self.answers is None or self.answers[:2] != (generation, step):
            self.prepare(generation, step)
        assert self.answers is not None
        for packed in self.answers[2]:
            self.send(packed)

    def on_form(self, form: p.Form) -> None:
        """Its members enter the generation."""
        self.received, self.answers = form.generation, None
        formed = [
            p.Formed(
                wid=wid,
                generation=form.generation,
                step=form.start_step,
                seconds={"reconfigure": 0.1, "transfer": 0.0},
            )
            for wid in self.ranks
        ]
        if formed:
            self.say(*formed)

    def resume(self, generation: int, step: int, size: int) -> None:
        """Members committed their first step; each tenth has a snapshot."""
        said: list[p.Message] = [
            p.Resumed(wid=wid, generation=generation, committed=step, ago=0.0) for wid in self.ranks
        ]
        if generation == 1 or step % 10 == 0:
            said += [
                p.SnapshotTaken(
                    wid=wid,
                    rank=rank,
                    committed=step,
                    digest=digest(step),
                    payload=rank in (0, size - 1),
                    seconds=0.001,
                )
                for wid, rank in self.ranks.items()
            ]
        if said:
            self.say(*said)
