"""The coordinator process: a thin shell of sockets, clock and disk around ``Membership``.

Whatever it decides is on disk before anybody is told (write to a temporary name, fsync, rename).
It can be killed at any moment: training goes on, the next one reads the journal and agents repeat
what it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.parent import die_with_parent
from keepstep.runtime import journal
from keepstep.runtime import protocol as p
from keepstep.runtime.channel import Channel, pack, serve
from keepstep.runtime.event_file import EventFile
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.job_state import ALL
from keepstep.runtime.journal import DamagedJournalError, Journal
from keepstep.runtime.membership import LONGEST_TICK, Membership
from keepstep.runtime.overview import Overviews
from keepstep.runtime.roster import Phase
from keepstep.runtime.settings import Settings
from keepstep.runtime.summary import summarise

TICK, CALM_TICK = 0.1, LONGEST_TICK  # seconds; the second while a generation lives
HANDSHAKE = 5.0  # seconds for a client to prove that it knows the secret
LINGER = 20.0  # seconds to wait for agents after the end of the job and of its workers
COLLECT = 60.0  # seconds between two collections of garbage, besides that after a recovery


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorConfig:
    """Where the coordinator listens and writes."""

    host: str
    port: int
    journal: str
    events: str | None
    store: str
    name: str  # of the job, in the names of its incidents
    settings: dict[str, Any]
    injections: list[str]

    @classmethod
    def read(cls, path: str) -> CoordinatorConfig:
        """Read the JSON file that ``keepstep run`` wrote."""
        return cls(**json.loads(Path(path).read_text()))


@dataclass(slots=True)
class Coordinator:
    """Connections of agents and the mind behind them."""

    config: CoordinatorConfig
    secret: str
    job: Membership
    channels: dict[str, Channel] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: set[str] = field(default_factory=set)
    overviews: Overviews = field(default_factory=Overviews)
    journal: Journal = field(init=False)
    written: EventFile = field(init=False)
    _end_seen: float = 0.0
    _summary_sent: bool = False
    _flush_due: bool = False
    _collected: float = 0.0
    _tidied: int = -1  # the generation in which it was done last

    def __post_init__(self) -> None:
        self.journal = Journal(Path(self.config.journal))
        self.written = EventFile(self.config.events)

    async def run(self) -> None:
        """Serve until the job has ended and its agents have left."""
        server = await serve(
            self.config.host,
            self.config.port,
            self.secret,
            HANDSHAKE,
            self._on_channel,
            self._on_refused,
        )
        async with server:
            while not self.ended.is_set():
                pause = CALM_TICK if self.job.phase is Phase.LIVE else TICK
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), pause)
                self.job.tick(time.monotonic())
                self._drop_gone_agents()
                self._flush()
                if self.job.phase is Phase.LIVE:
                    self.journal.shorten()
                self._collect_garbage()
                self._end_if_over()
        for channel in self.channels.values():
            channel.close()

    def _collect_garbage(self) -> None:
        """Do when the job is at rest what Python would do in the middle of a recovery.

        What 16,000 workers say makes it look at every object several times: a few tenths of a
        second of the second in which a fault is to be planned and announced.
        """
        now = time.monotonic()
        moved_on = self.job.phase is Phase.LIVE and self.job.generation != self._tidied
        if moved_on or now - self._collected > COLLECT:
            gc.collect()
            gc.freeze()  # what is left lives long: not looked at again, which takes 0.25 s
            self._collected, self._tidied = now, self.job.generation

    def _on_refused(self, error: AuthenticationError) -> None:
        self.job.events.append({"event": "refused", "why": str(error)})
        self._flush()

    def _on_channel(self, channel: Channel) -> None:
        name = ""

        def on_messages(messages: list[p.Message]) -> None:
            nonlocal name
            if not messages:
                return
            if not name:
                hello = p.expect(messages[0], p.Hello)
                name, messages = hello.agent, messages[1:]
                self._welcome(hello, channel)
            self._take(name, messages)

        channel.listen(on_messages, lambda error: self._on_end(name, channel, error))

    def _welcome(self, hello: p.Hello, channel: Channel) -> None:
        self._replace_channel(hello.agent, channel)
        self.job.on_hello(hello, time.monotonic())
        self._flush_soon()

    def _drop_gone_agents(self) -> None:
        """Close the connection of an agent that counts as gone; it may come back as a new one."""
        for name in [name for name in self.channels if name not in self.job.agents]:
            self.channels.pop(name).abort()

    def _replace_channel(self, name: str, channel: Channel) -> None:
        old = self.channels.pop(name, None)
        if old is not None:
            old.close()
        self.channels[name] = channel

    def _take(self, name: str, messages: list[p.Message]) -> None:
        now = time.monotonic()
        self.job.on_messages(name, messages, now)
        kinds = set(map(type, messages))
        if p.Goodbye in kinds:
            self.leaving.add(name)
        self._flush_soon()
        if p.Beat in kinds:
            overview = self.overviews.due(self.job, name, now)
            if overview is not None and name in self.channels:
                self.channels[name].send(overview)

    def _on_end(self, name: str, channel: Channel, error: Exception) -> None:
        if isinstance(error, p.ProtocolError):
            self.job.events.append({"event": "refused", "agent": name, "why": str(error)})
        if self.channels.get(name) is channel:
            del self.channels[name]
            self.job.on_disconnect(name, time.monotonic())
        self._flush_soon()

    # --- what leaves the process ------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Flush when all that has arrived was taken: one journal for many messages."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        job = self.job
        if job.changed:
            job.changed = False
            self.journal.write(job)
        outbox, job.outbox = job.outbox, []
        for name, message in outbox:
            self._deliver(name, message)
        self._tell_events()

    def _deliver(self, name: str, message: p.Message) -> None:
        if name != ALL:
            if name in self.channels:
                self.channels[name].send(message)
            return
        packed = pack(message)
        for channel in list(self.channels.values()):
            channel.send(packed)

    def _tell_events(self) -> None:
        events, self.job.events = self.job.events, []
        if not events:
            return
        stamped = [{"time": round(time.time(), 4), **fact} for fact in events]
        if why := self.written.append(stamped):
            stamped.append({"time": round(time.time(), 4), "event": "events_lost", "why": why})
        lead = next(iter(self.job.agents), None)
        for fact in stamped:
            if lead in self.channels:
                self.channels[lead].send(p.Event(fact=fact))

    def _end_if_over(self) -> None:
        job = self.job
        if job.phase not in (Phase.FINISHING, Phase.ENDED):
            return
        workers_gone = all(worker.gone for worker in job.workers.values())
        if job.phase is Phase.FINISHING and not workers_gone:
            return  # the training is complete, their scripts are not
        self._end_seen = self._end_seen or time.monotonic()
        agents_left = all(name in self.leaving for name in job.agents) if job.agents else True
        overdue = job.waited(self._end_seen) > LINGER
        lead_waits = bool(self.channels)
        if (workers_gone and self._rows_are_in()) or overdue:
            self._send_summary()
        if agents_left or overdue or not lead_waits:
            self.ended.set()

    def _rows_are_in(self) -> bool:
        return self.job.agents_reported >= set(self.channels)

    def _send_summary(self) -> None:
        if self._summary_sent:
            return
        self._summary_sent = True
        message = p.Summary(facts=summarise(self.job))
        for channel in self.channels.values():
            channel.send(message)


def load_job(config: CoordinatorConfig) -> Membership:
    """Return the job in the journal, or a new one."""
    path = Path(config.journal)
    now = time.monotonic()
    if path.exists():
        job = journal.load(path, now)
    else:
        job = Membership(settings=Settings(**config.settings), store=config.store)
    job.injections = config.injections
    job.job_name = config.name
    return job


def main() -> None:
    """Run the coordinator that the file in argv[1] describes."""
    die_with_parent()
    config = CoordinatorConfig.read(sys.argv[1])
    try:
        job = load_job(config)
    except DamagedJournalError as error:
        sys.exit(f"keepstep: {error}")
    coordinator = Coordinator(config, os.environ["KEEPSTEP_SECRET"], job)
    gc.disable()  # see _collect_garbage
    asyncio.run(coordinator.run())


if __name__ == "__main__":
    main()
