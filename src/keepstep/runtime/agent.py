"""The agent of one host: takes the coordinator's orders and watches over its workers.

It talks to the coordinator over an authenticated channel and to each worker over a socket pair; it
reads the workers' progress from shared memory and their exits from process descriptors, so that
nothing depends on a worker that answers.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.agent_events import AgentEvents
from keepstep.runtime.beats import Beats, beat, glance, read_progress
from keepstep.runtime.contact import Contact
from keepstep.runtime.detect import CLOSE, is_stalled
from keepstep.runtime.evidence import Evidence
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.inject import parse
from keepstep.runtime.lease import Lease
from keepstep.runtime.mirror import Mirror
from keepstep.runtime.named_faults import NamedFaults
from keepstep.runtime.pauses import Pauses
from keepstep.runtime.processes import Processes, WorkerProcess
from keepstep.runtime.samples import merge
from keepstep.runtime.settings import Times
from keepstep.runtime.transfer import ByteServer

REJOIN_LIMIT = 300.0  # seconds that a cut-off agent, its workers fenced, tries to come back
RETRY = 0.05  # seconds between two attempts to reach the coordinator


class Agent:
    """See the module's text. ``run`` returns when the job has ended."""

    def __init__(
        self,
        config: AgentConfig,
        on_event: Callable[[dict[str, Any]], None],
        on_own_event: Callable[[dict[str, Any]], None],
        kill_coordinator: Callable[[], None] | None = None,
    ) -> None:
        """Make the vault and start to serve it.

        Args:
            config: What this agent is to do.
            on_event: Gets what the coordinator tells, which it has written down already.
            on_own_event: Gets what only this agent knows, which nobody has written down.
            kill_coordinator: For faults on purpose; None: it runs elsewhere.
        """
        self.config = config
        self.generation, self.members = 0, list[int]()
        self.world_size = 0
        self._halted = 0  # the newest generation for which the present one was to be left
        self.summary: dict[str, Any] | None = None
        self.abort: p.Abort | None = None
        self._final_codes: dict[int, int] = {}
        self._store = ""
        self._finishing = False
        self._ended = asyncio.Event()
        self.rows: dict[int, p.Progress] = {}  # of the last look at each worker
        self.overview: tuple[float, p.Overview] | None = None  # when it came, and what it says
        config.vault.mkdir(parents=True, exist_ok=True)
        self._server = ByteServer(config.host, config.secret, self._provide)
        self._mirror = Mirror(config.vault, config.secret)
        self._show = on_event
        self._events = AgentEvents(config.name, config.host, on_own_event)
        self._contact = Contact(config.coordinator, config.secret, self._events)
        self._lease = Lease()
        self._pauses = Pauses()
        self._is_awaited = False  # a lease, since this host was held up
        self._beats = Beats()
        self._faults = NamedFaults(kill_coordinator, self._contact.send)
        self._processes = Processes(config, self._report, self._on_exit)
        self._evidence = Evidence(config, self._processes, self._events, self._contact.send)

    def _provide(self, name: str) -> list[bytes | memoryview] | None:
        data = vault.read_blob(self.config.vault, name)
        return None if data is None else [data]

    # --- what others may know -------------------------------------------------------------------

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """The workers of this host, dead ones included, by their numbers."""
        return self._processes.workers

    @property
    def in_contact(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._contact.is_there

    @property
    def lease_left(self) -> float:
        """Seconds that the workers may go on without news of the coordinator."""
        return self._lease.left

    @property
    def ending(self) -> bool:
        """Whether the job's end was announced."""
        return self._finishing or self.abort is not None

    def codes_after_finish(self) -> dict[int, int]:
        """Return the exit codes of the workers that lived when the job was complete."""
        return dict(self._final_codes)

    def interrupt(self) -> None:
        """Have the job ended: ``run`` returns when the summary is there."""
        self._contact.send(p.Interrupted())

    # --- the job's course -----------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the job until it has ended; no worker is left behind."""
        self._evidence.prepare()
        tasks = [asyncio.create_task(self._keep_contact()), asyncio.create_task(self._watch())]
        ended = asyncio.create_task(self._ended.wait())
        try:
            done, _ = await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an error of ours must not look like the end of the job
        finally:
            for task in [*tasks, ended]:
                task.cancel()
            await asyncio.gather(*tasks, ended, return_exceptions=True)
            self.close()

    def close(self) -> None:
        """Kill every worker and remove the vault. May be called twice."""
        self._evidence.end()
        self._processes.end()
        self._server.close()
        self._mirror.close()
        self._contact.close()
        shutil.rmtree(self.config.vault, ignore_errors=True)

    async def _keep_contact(self) -> None:
        while not self._ended.is_set():
            try:
                await self._contact.talk(self._hello, self._take)
            except AuthenticationError as error:
                self.abort = p.Abort(why=str(error), code=2)
                self._ended.set()
            except ConnectionRefusedError as error:
                # The host answers and no coordinator listens: it is dead, so nobody can have
                # decided on a generation without us. Go on until the next one is there.
                if self._lease.until:  # one that was granted: before the first nobody computes
                    self._extend_lease(time.monotonic())
                self._seek(error)
            except (EOFError, TimeoutError, OSError, p.ProtocolError) as error:
                self._seek(error)
            self._contact.note_loss(self.lease_left, is_end=self._ended.is_set() or self.ending)
            await asyncio.sleep(RETRY)

    def _seek(self, error: Exception) -> None:
        why = self._contact.note_failure(error)
        if why is not None:
            self.abort = p.Abort(why=why, code=4)
            self._ended.set()

    def _hello(self) -> p.Hello:
        standing = [*self._faults.again(), *self._processes.standing()]
        return p.Hello(
            agent=self.config.name,
            host=self.config.host,
            sent=time.monotonic(),
            wids=list(self.workers),
            address=f"{self.config.host}:{self._server.port}",
            workers=self.config.workers,
            spares=self.config.spares,
            standing=[p.to_dict(message) for message in standing],
        )

    def _extend_lease(self, since: float) -> None:
        alive = [worker for worker in self._processes.alive() if not worker.fenced]
        self._lease.extend(since, [worker.progress for worker in alive])

    # --- words of the workers ---------------------------------------------------------------------

    def _report(self, message: p.Message) -> None:
        if isinstance(message, p.Fired):
            self._faults.note(message)
        self._contact.send(message)

    def _on_exit(self, worker: WorkerProcess) -> None:
        assert worker.exited is not None
        if self._finishing and not worker.fenced:
            self._final_codes[worker.wid] = worker.exited.code
        self._contact.send(worker.exited)

    # --- orders of the coordinator ----------------------------------------------------------------

    def _take(self, message: p.Message) -> None:
        if isinstance(message, p.Welcome):
            self._contact.note_welcome()
            self._store, self.world_size = message.store, message.world_size
            self._faults.plan = tuple(parse(message.injections, message.world_size))
            self._lease.times = Times(patience=message.patience, median_step=0.0)
            self._extend_lease(message.sent)
        elif isinstance(message, p.Lease):
            self._lease.times = Times(patience=message.patience, median_step=0.0)
            self._extend_lease(message.sent)
            if self._is_awaited and message.sent >= self._pauses.woke:
                self._is_awaited = False
                self._events.tell("went_on", after_s=round(time.monotonic() - self._pauses.woke, 3))
        elif isinstance(message, p.Launch):
            if not self._finishing:
                self._launch(message)
        elif isinstance(message, p.Fence):
            self._processes.fence(message.wid)
        elif isinstance(message, p.Halt):
            self._halted = message.generation
            self._processes.pass_on(message.wids, message)
        elif isinstance(message, p.Form):
            self.generation, self.members = message.generation, message.members
            self._processes.pass_on(message.members, message)
            self._processes.forget_snapshots(message.start_step)
            self._mirror.follow(*message.mirrors.get(self.config.name, ("", [])))
        elif isinstance(message, p.Recall):
            for wid in message.wids:
                records = vault.read_records(self.config.vault, wid)
                committed, entry = vault.known_counts(records)
                left_in = vault.newest_generation(records)
                self._contact.send(
                    p.Kept(wid=wid, committed=committed, entry=entry, generation=left_in)
                )
        elif isinstance(message, p.SnapshotEvery):
            self._processes.pass_on(self.members, message)
        elif isinstance(message, p.Finish):
            self._finish(message)
        elif isinstance(message, p.Abort):
            self.abort = message
            self._processes.fence_all()
            asyncio.get_running_loop().create_task(self._leave())
        elif isinstance(message, p.Incident):
            self._evidence.keep(message)
        elif isinstance(message, p.Event):
            self._show(message.fact)
        elif isinstance(message, p.Overview):
            self.overview = (time.monotonic(), message)
        elif isinstance(message, p.Summary):
            self.summary = message.facts
            self._contact.send(p.Goodbye(agent=self.config.name))
            self._ended.set()

    def _launch(self, order: p.Launch) -> None:
        host, _, port = self._store.rpartition(":")
        for wid, rank in zip(order.wids, order.ranks, strict=True):
            self._processes.start(
                wid,
                rank,
                store=(host, int(port)),
                world_size=self.world_size,
                injections=self._faults.plan,
                prepare=self._lease.write,
            )

    def _finish(self, order: p.Finish) -> None:
        self._finishing = True
        self._processes.pass_on(self.workers, order)
        for worker in self.workers.values():
            if "Ready" not in worker.standing:
                self._processes.fence(worker.wid)  # still starting: nothing is left for it to do
        asyncio.get_running_loop().create_task(self._after_finish())

    async def _after_finish(self) -> None:
        """Let the scripts run to their end; what they do after the training is theirs."""
        while self._processes.alive():
            await asyncio.sleep(0.02)
        await self._leave()

    async def _leave(self) -> None:
        await self._evidence.written()
        self._contact.send(p.SampleRows(rows=merge(vault.sample_rows(self.config.vault))))

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        pause, now = self._lease.times.poll, time.monotonic()
        while True:
            self._pauses.will_look(now, pause)
            await asyncio.sleep(pause)
            now = time.monotonic()
            times = self._lease.times
            held_up = self._pauses.look(now)
            if held_up:
                self._is_awaited = True
                self._events.tell("held_up", seconds=round(held_up, 3))
            elif self._is_calm(now, times):
                pause = times.poll
                continue
            woke = self._pauses.woke
            rows = [
                read_progress(worker, times.patience, woke) for worker in self._processes.alive()
            ]
            self.rows.update((row.wid, row) for row in rows)
            ours = [row for row in rows if row.wid in self.members]
            ages = {row.wid: row.age for row in ours}
            old = any(age >= CLOSE * times.patience for age in ages.values())
            pause = times.close_poll if old else times.poll
            self._evidence.call_witnesses(
                rows,
                ages,
                patience=times.patience,
                generation=self.generation,
                is_halted=self._halted > self.generation,
            )
            stalled = {row.wid for row in ours if is_stalled(row, times.patience)}
            if self._beats.due(now, stalled, times) or held_up:
                self._contact.send(beat(now, rows))
            newest = max((row.committed for row in ours), default=0)
            self._faults.fire_due(newest, self._processes.alive(), self.members)
            if self._lease.until:
                until = self._lease.until_after(self._pauses.woke)
                if now > until:
                    self._cut_off(now, until)

    def _is_calm(self, now: float, times: Times) -> bool:
        """Return whether nothing can be due; to look at all that is known takes much longer."""
        workers = self._processes.workers
        return (
            self._beats.is_calm(now, times)
            and now < self._lease.until
            and not self._faults.plan
            and all(glance(workers[wid], now, times.patience) for wid in self._own_members())
        )

    def _own_members(self) -> list[int]:
        return [wid for wid in self.members if wid in self._processes.workers]

    def _cut_off(self, now: float, until: float) -> None:
        """Nothing was heard of the coordinator for a whole lease: fence ourselves."""
        if now - until > REJOIN_LIMIT:
            why = f"no contact with the coordinator for {REJOIN_LIMIT:.0f} s; gave up"
            self.abort = p.Abort(why=why, code=4)
            self._ended.set()
        if not self._lease.is_cut_off:  # the workers watch the lease too and may be gone already
            self._lease.is_cut_off = True
            why = "no contact with the coordinator for a whole lease: workers fenced"
            self._events.tell("cut_off", why=why)
        self._processes.fence_all()
        self._contact.give_up(now, self._lease.times.lease)
