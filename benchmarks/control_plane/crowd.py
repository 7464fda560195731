"""All simulated agents, in one thread: sockets, beats, answers to orders."""

from __future__ import annotations

import functools
import hashlib
import random
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.control_plane.agent import Agent
from benchmarks.control_plane.process import Coordinator
from keepstep.runtime import protocol as p
from keepstep.runtime.channel import unpack

LIMIT = 300.0  # seconds to wait for anything
SETTLE = 1.5  # seconds between a recovery and the next fault: every agent has sent a beat
LONG = 10_000  # bytes of a frame that is for all agents
JOINING = 20  # agents that introduce themselves at the same time
STALL_SHOWS = 0.1  # seconds within which all agents see that their workers wait


@dataclass(slots=True)
class Crowd:
    """``turn`` lets it act; see the module's text."""

    coordinator: Coordinator
    size: int
    ranks_each: int
    spares_each: int
    rate: float  # beats of an agent in a second
    together: bool
    agents: list[Agent] = field(default_factory=list)
    committed: int = 0
    generation: int = 0
    members: list[int] = field(default_factory=list)
    stalled: bool = False
    beats: int = 0
    halts: dict[int, list[float]] = field(default_factory=dict)  # generation -> moments
    forms: dict[int, list[float]] = field(default_factory=dict)
    halt_bytes: int = 0
    form_bytes: int = 0
    abort: str = ""
    _epoll: select.epoll = field(default_factory=select.epoll)
    _of_socket: dict[int, Agent] = field(default_factory=dict)
    _of_wid: dict[int, Agent] = field(default_factory=dict)
    _due: list[tuple[float, Agent, Callable[[Agent], None]]] = field(default_factory=list)
    _beats_from: float = 0.0
    _buffer: bytearray = field(default_factory=lambda: bytearray(1 << 20))
    _last: tuple[bytes, bytes, list[p.Message]] = (b"", b"", [])  # body, digest, messages

    def join(self) -> None:
        """Connect all agents and wait until the first generation is announced."""
        for number in range(self.size):
            agent = Agent(number, self.coordinator.port, self.coordinator.secret, self.together)
            agent.connect()
            self.agents.append(agent)
            self._of_socket[agent.connection.fileno()] = agent
            self._epoll.register(agent.connection.fileno(), select.EPOLLIN)
        self._beats_from = time.monotonic()
        for first in range(0, self.size, JOINING):
            coming = self.agents[first : first + JOINING]
            for agent in coming:
                agent.hello(self.ranks_each, self.spares_each)
            self.until(functools.partial(_have_workers, coming))
        self.until(lambda: len(self.forms.get(1, ())) == self.size)

    def close(self) -> None:
        """Close every connection."""
        for agent in self.agents:
            agent.connection.close()
        self._epoll.close()

    # --- time -------------------------------------------------------------------------------------

    def until(self, reached: Callable[[], bool]) -> None:
        """Act until something is so."""
        deadline = time.monotonic() + LIMIT
        while not reached():
            self.turn(0.005)
            if self.abort:
                raise RuntimeError(f"the coordinator ended the job: {self.abort}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing for {LIMIT:.0f} s in generation {self.generation}")

    def rest(self, seconds: float) -> None:
        """Act for some time."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def quiet(self) -> None:
        """Wait until the coordinator has read all that was said so far."""
        asked = time.monotonic()
        for agent in self.agents:
            agent.beat(self.committed, self.stalled)
            self.turn(0.0)
        self.until(lambda: not self._due and all(agent.leased >= asked for agent in self.agents))

    def turn(self, wait: float) -> None:
        """Take what has arrived; say what is due."""
        for descriptor, _ in self._epoll.poll(wait):
            agent = self._of_socket[descriptor]
            count = agent.connection.recv_into(self._buffer)
            if not count:
                raise RuntimeError(f"the coordinator closed the connection of {agent.name}")
            for mac, flag, body in agent.frames(memoryview(self._buffer)[:count]):
                self._take(agent, mac, flag, body)
        now = time.monotonic()
        if self._beats_from:
            wanted = int((now - self._beats_from) * self.rate * self.size)
            for number in range(self.beats, min(wanted, self.beats + 50)):
                if self.agents[number % self.size].wids:
                    self.agents[number % self.size].beat(self.committed, self.stalled)
                self.beats += 1
        while self._due and self._due[-1][0] <= now:
            _, agent, act = self._due.pop()
            act(agent)

    def _all_do(self, act: Callable[[Agent], None], within: float) -> None:
        now = time.monotonic()
        self._due += [(now + random.random() * within, agent, act) for agent in self.agents]
        self._due.sort(key=lambda due: -due[0])

    # --- faults -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """A random member dies."""
        wid = random.choice(self.members)
        self._of_wid[wid].exit(wid, "kill", self.committed)

    def stop(self) -> None:
        """A random member was stopped a patience ago: now all agents see it."""
        wid = random.choice(self.members)
        agent, self.stalled = self._of_wid[wid], True
        agent.stopped, agent.answers = wid, None
        agent.beat(self.committed, stalled=True)
        self._all_do(lambda other: other.beat(self.committed, self.stalled), STALL_SHOWS)

    # --- orders -----------------------------------------------------------------------------------

    def _take(self, agent: Agent, mac: bytes, flag: bytes, body: bytes) -> None:
        """Check and read a frame; one that is equal to the last long one is hashed no more."""
        if len(body) > LONG and body == self._last[0]:
            _, digest, messages = self._last
        else:
            digest, messages = hashlib.sha256(body).digest(), unpack(flag, body)
            if len(body) > LONG:
                self._last = (body, digest, messages)
        agent.codec.check(mac, flag, digest)
        for message in messages:
            self._obey(agent, message, len(body))

    def _obey(self, agent: Agent, message: p.Message, size: int) -> None:
        if isinstance(message, p.Launch):
            agent.start(message.wids)
            self._of_wid.update(dict.fromkeys(message.wids, agent))
        elif isinstance(message, p.Halt):
            self.halts.setdefault(message.generation, []).append(time.monotonic())
            self.halt_bytes, self.stalled = size, False
            agent.on_halt(message.generation, self.committed)
        elif isinstance(message, p.Form):
            self._form(agent, message, size)
        elif isinstance(message, p.Fence):
            if message.wid in agent.wids:
                agent.exit(message.wid, "fence", self.committed)
        elif isinstance(message, p.Lease):
            agent.leased = message.sent
        elif isinstance(message, p.Abort):
            self.abort = message.why

    def _form(self, agent: Agent, form: p.Form, size: int) -> None:
        moments = self.forms.setdefault(form.generation, [])
        moments.append(time.monotonic())
        if form.generation > self.generation:
            self.generation, self.form_bytes = form.generation, size
            self._seat(form.members)
        agent.on_form(form)
        if len(moments) == self.size:
            self.committed = form.start_step + 1
            self._all_do(self._resume, SETTLE / 2)

    def _seat(self, members: list[int]) -> None:
        before, self.members = self.members, members
        for rank, wid in enumerate(members):
            old = before[rank] if rank < len(before) else -1
            if old != wid:
                if old >= 0:
                    self._of_wid[old].ranks.pop(old, None)
                self._of_wid[wid].ranks[wid] = rank

    def _resume(self, agent: Agent) -> None:
        agent.resume(self.generation, self.committed, len(self.members))
        agent.prepare(self.generation + 1, self.committed)


def _have_workers(agents: list[Agent]) -> bool:
    return all(agent.wids for agent in agents)
