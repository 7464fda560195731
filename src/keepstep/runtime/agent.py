"""The agent of one host: starts, watches and fences its workers.

It talks to the coordinator over an authenticated channel and to each worker over a socket pair; it
reads the workers' progress from shared memory and their exits from process descriptors, so that
nothing depends on a worker that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keepstep.runtime import deathwatch, procfs, vault
from keepstep.runtime import protocol as p
from keepstep.runtime.channel import Channel, connect
from keepstep.runtime.environment import worker_environment
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.incidents import IncidentWriter, Judge, ProcessFacts, Witnesses, ending
from keepstep.runtime.inject import Injection, parse
from keepstep.runtime.mirror import Mirror
from keepstep.runtime.progress import ProgressRecord, Slot, seconds_since
from keepstep.runtime.samples import merge
from keepstep.runtime.settings import Times
from keepstep.runtime.transfer import ByteServer

CONNECT_TIMEOUT = 2.0
REJOIN_LIMIT = 300.0  # seconds that a cut-off agent, its workers fenced, tries to come back
RETRY = 0.05  # seconds between two attempts to reach the coordinator
SUSPECTED = 0.6  # of the patience without progress: time to ask for evidence
EVIDENCE_LIMIT = 10.0  # seconds that the end of the job waits for evidence to be written


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """What ``keepstep run`` tells the agent."""

    name: str
    host: str  # address under which other hosts reach this one
    coordinator: tuple[str, int]
    secret: str
    workers: int
    spares: int
    backend: str
    command: list[str]
    vault: Path
    output: tuple[int | None, int | None] = (None, None)  # descriptors for the workers' output
    python: str = sys.executable  # the workers' interpreter
    import_from: str = ""  # where another interpreter than ours finds this package
    incidents: Path = Path("incidents")  # folder for what was left of each fault
    kept_incidents: int = 0  # the newest ones; 0: none are written


@dataclass(slots=True)
class WorkerProcess:
    """One worker of this host."""

    wid: int
    local_rank: int
    process: subprocess.Popen[bytes]
    descriptor: int  # pidfd
    link: socket.socket
    progress: ProgressRecord
    born: float
    standing: dict[str, p.Message] = field(default_factory=dict)
    exited: p.Exited | None = None
    fenced: bool = False
    buffer: bytearray = field(default_factory=bytearray)
    sequence: tuple[int, int] = (0, 0)  # value, when it was first seen (ns)
    cpu: tuple[float, int] = (0.0, 0)  # seconds that the main thread worked, when read (ns)

    @property
    def alive(self) -> bool:
        """Whether the process runs (or is stopped)."""
        return self.exited is None


class Agent:
    """See the module's text. ``run`` returns when the job has ended."""

    def __init__(
        self,
        config: AgentConfig,
        on_event: Callable[[dict[str, Any]], None],
        kill_coordinator: Callable[[], None] | None = None,
    ) -> None:
        """Make the vault and start to serve it."""
        self.config, self._on_event = config, on_event
        self._kill_coordinator = kill_coordinator
        self.workers: dict[int, WorkerProcess] = {}
        self.times = Times(patience=5.0, median_step=0.0)
        self.generation, self.members = 0, list[int]()
        self.world_size = 0
        self._halted = 0  # the newest generation for which the present one was to be left
        self.summary: dict[str, Any] | None = None
        self.abort: p.Abort | None = None
        self._final_codes: dict[int, int] = {}
        self._store = ""
        self._injections: tuple[Injection, ...] = ()
        self._channel: Channel | None = None
        self._finishing = False
        self._ended = asyncio.Event()
        self._fired: dict[int, tuple[p.Fired, float]] = {}  # and when it was said
        self._lease_until = self._connected = 0.0
        self._last_beat = 0.0
        self._is_cut_off = False  # told that the lease has ended
        self._stalled: set[int] = set()  # members that had run out of patience then
        self.rows: dict[int, p.Progress] = {}  # of the last look at each worker
        self.overview: tuple[float, p.Overview] | None = None  # when it came, and what it says
        self._away_since: float | None = None  # no contact with the coordinator
        config.vault.mkdir(parents=True, exist_ok=True)
        self._server = ByteServer(config.host, config.secret, self._provide)
        self._mirror = Mirror(config.vault, config.secret)
        self._witnesses = Witnesses(config.vault)
        self._judge = Judge()
        self._writing: set[asyncio.Task[None]] = set()

    def _provide(self, name: str) -> list[bytes | memoryview] | None:
        data = vault.read_blob(self.config.vault, name)
        return None if data is None else [data]

    # --- the job's course ----------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the job until it has ended; no worker is left behind."""
        if self.config.kept_incidents > 0:
            self._judge.prepare()
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
        self._judge.end()
        for worker in self.workers.values():
            if worker.alive:
                _kill_group(worker.process.pid)
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(5)
        self._server.close()
        self._mirror.close()
        if self._channel is not None:
            self._channel.close()
        shutil.rmtree(self.config.vault, ignore_errors=True)

    async def _keep_contact(self) -> None:
        while not self._ended.is_set():
            try:
                await self._talk()
            except AuthenticationError as error:
                self.abort = p.Abort(why=str(error), code=2)
                self._ended.set()
            except ConnectionRefusedError:
                # The host answers and no coordinator listens: it is dead, so nobody can have
                # decided on a generation without us. Go on until the next one is there.
                self._extend_lease(time.monotonic())
            except (EOFError, TimeoutError, OSError, p.ProtocolError):
                pass
            self._note_away()
            self._channel = None
            await asyncio.sleep(RETRY)

    async def _talk(self) -> None:
        host, port = self.config.coordinator
        channel = await connect(host, port, self.config.secret, CONNECT_TIMEOUT)
        self._channel, self._connected = channel, time.monotonic()
        channel.send(self._hello())
        while True:
            self._take(await channel.receive())

    def _note_away(self) -> None:
        if self._channel is None or self._ended.is_set() or self.ending:
            return
        self._away_since = time.monotonic()
        self._tell("coordinator_away", lease_s=round(self.lease_left, 3))

    def _note_back(self) -> None:
        if not self._store:
            host, port = self.config.coordinator
            self._tell("job_joined", coordinator=f"{host}:{port}")
        if self._away_since is not None:
            after = time.monotonic() - self._away_since
            self._away_since = None
            self._tell("coordinator_back", after_s=round(after, 3))

    def _tell(self, event: str, **facts: Any) -> None:
        self._on_event(
            {
                "time": round(time.time(), 4),
                "event": event,
                "agent": self.config.name,
                "host": self.config.host,
                **facts,
            }
        )

    def _hello(self) -> p.Hello:
        said = [message for w in self.workers.values() for message in w.standing.values()]
        standing = [p.to_dict(message) for message in [*self._fired_again(), *said]]
        return p.Hello(
            agent=self.config.name,
            host=self.config.host,
            sent=time.monotonic(),
            wids=list(self.workers),
            address=f"{self.config.host}:{self._server.port}",
            workers=self.config.workers,
            spares=self.config.spares,
            standing=standing,
        )

    @property
    def in_contact(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._channel is not None

    @property
    def lease_left(self) -> float:
        """Seconds that the workers may go on without news of the coordinator."""
        return max(0.0, self._lease_until - time.monotonic())

    def _extend_lease(self, since: float) -> None:
        self._lease_until = max(self._lease_until, since + self.times.lease)
        self._is_cut_off = False
        for worker in self.workers.values():
            if worker.alive:
                self._tell_times(worker.progress)

    def _tell_times(self, progress: ProgressRecord) -> None:
        progress[Slot.LEASE] = int(self._lease_until * 1e9)
        progress[Slot.PATIENCE] = int(self.times.patience * 1e9)

    def _send(self, message: p.Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    @property
    def ending(self) -> bool:
        """Whether the job's end was announced."""
        return self._finishing or self.abort is not None

    def codes_after_finish(self) -> dict[int, int]:
        """Return the exit codes of the workers that lived when the job was complete."""
        return dict(self._final_codes)

    # --- orders ---------------------------------------------------------------------------------

    def _take(self, message: p.Message) -> None:
        if isinstance(message, p.Welcome):
            self._note_back()
            self._store, self.world_size = message.store, message.world_size
            self._injections = tuple(parse(message.injections, message.world_size))
            self.times = Times(patience=message.patience, median_step=0.0)
            self._extend_lease(message.sent)
        elif isinstance(message, p.Lease):
            self.times = Times(patience=message.patience, median_step=0.0)
            self._extend_lease(message.sent)
        elif isinstance(message, p.Launch):
            for wid, rank in zip(message.wids, message.ranks, strict=True):
                self._start(wid, rank)
        elif isinstance(message, p.Fence):
            self._fence(message.wid)
        elif isinstance(message, p.Halt):
            self._halted = message.generation
            self._pass_on(message.wids, message)
        elif isinstance(message, p.Form):
            self.generation, self.members = message.generation, message.members
            self._pass_on(message.members, message)
            self._mirror.follow(*message.mirrors.get(self.config.name, ("", [])))
        elif isinstance(message, p.Recall):
            for wid in message.wids:
                records = vault.read_records(self.config.vault, wid)
                committed, entry = vault.known_counts(records)
                self._send(p.Kept(wid=wid, committed=committed, entry=entry))
        elif isinstance(message, p.SnapshotEvery):
            self._pass_on(self.members, message)
        elif isinstance(message, p.Finish):
            self._finishing = True
            self._pass_on(list(self.workers), message)
            for worker in self.workers.values():
                if "Ready" not in worker.standing:
                    self._fence(worker.wid)  # still starting: nothing is left for it to do
            asyncio.get_running_loop().create_task(self._after_finish())
        elif isinstance(message, p.Abort):
            self.abort = message
            self._end_workers()
            asyncio.get_running_loop().create_task(self._leave())
        elif isinstance(message, p.Incident):
            self._keep_evidence(message)
        elif isinstance(message, p.Event):
            self._on_event(message.fact)
        elif isinstance(message, p.Overview):
            self.overview = (time.monotonic(), message)
        elif isinstance(message, p.Summary):
            self.summary = message.facts
            self._send(p.Goodbye(agent=self.config.name))
            self._ended.set()

    def _pass_on(self, wids: list[int], message: p.Message) -> None:
        line = p.to_json(message) + b"\n"
        for wid in wids:
            worker = self.workers.get(wid)
            if worker is not None and worker.alive:
                with contextlib.suppress(OSError):
                    worker.link.sendall(line)

    async def _after_finish(self) -> None:
        """Let the scripts run to their end; what they do after the training is theirs."""
        while any(worker.alive for worker in self.workers.values()):
            await asyncio.sleep(0.02)
        await self._leave()

    async def _leave(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing, timeout=EVIDENCE_LIMIT)
        self._send(p.SampleRows(rows=merge(vault.sample_rows(self.config.vault))))

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            self._fence(worker.wid)

    # --- processes --------------------------------------------------------------------------------

    def _start(self, wid: int, rank: int) -> None:
        if wid in self.workers or self._finishing:
            return
        taken = {worker.local_rank for worker in self.workers.values() if worker.alive}
        local_rank = next(place for place in range(len(taken) + 1) if place not in taken)
        path = self.config.vault / f"progress-{wid}"
        progress = ProgressRecord.create(path)
        self._tell_times(progress)
        ours, theirs = socket.socketpair()
        host, _, port = self._store.rpartition(":")
        environment = worker_environment(
            wid=wid,
            rank=rank,
            local_rank=local_rank,
            link=theirs.fileno(),
            progress=path,
            store=(host, int(port)),
            world_size=self.world_size,
            agent=self.config,
            injections=self._injections,
        )
        process = subprocess.Popen(
            [
                self.config.python,
                "-m",
                "keepstep.runtime.bootstrap",
                str(os.getpid()),
                *self.config.command,
            ],
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self.config.output[0],
            stderr=self.config.output[1],
        )
        theirs.close()
        ours.setblocking(False)
        descriptor = os.pidfd_open(process.pid)
        worker = WorkerProcess(
            wid, local_rank, process, descriptor, ours, progress, time.monotonic()
        )
        self.workers[wid] = worker
        self._report(worker, p.Launched(wid=wid, pid=process.pid))
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._on_exit, worker)
        loop.add_reader(ours, self._on_readable, worker)

    def _fence(self, wid: int) -> None:
        worker = self.workers.get(wid)
        if worker is None:
            return
        if worker.exited is not None:
            self._send(worker.exited)
            return
        worker.fenced = True
        _kill_group(worker.process.pid)

    def _watch_life(self, worker: WorkerProcess) -> None:
        """Have the loop told of the worker's death as early as it can be proven."""
        if self.config.backend == "nccl":
            return  # what it started on a GPU ends with its process, not before
        loop = asyncio.get_running_loop()

        def tell(code: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
                loop.call_soon_threadsafe(self._on_death, worker, code)

        deathwatch.watch(worker.progress.life, worker.process.pid, tell)

    def _on_exit(self, worker: WorkerProcess) -> None:
        """The kernel has freed all that the process had."""
        asyncio.get_running_loop().remove_reader(worker.descriptor)
        self._on_death(worker, worker.process.wait())
        os.close(worker.descriptor)

    def _on_death(self, worker: WorkerProcess, code: int) -> None:
        """No thread of the process can run any more."""
        if not worker.alive:
            return
        self._on_readable(worker)  # what it said last
        last = max(worker.progress[Slot.CHANGED], worker.progress[Slot.SIDE])
        ago = seconds_since(last) if last else time.monotonic() - worker.born
        _kill_group(worker.process.pid)  # helpers that it started (data loader processes)
        asyncio.get_running_loop().remove_reader(worker.link)
        worker.link.close()
        committed, entry = vault.known_counts(vault.read_records(self.config.vault, worker.wid))
        fault = "fence" if worker.fenced else _fault_name(code)
        worker.exited = p.Exited(
            wid=worker.wid,
            fault=fault,
            code=code,
            committed=committed,
            entry=entry,
            ago=ago,
            joined="Joined" in worker.standing,
        )
        worker.standing["Exited"] = worker.exited
        if self._finishing and not worker.fenced:
            self._final_codes[worker.wid] = code
        self._send(worker.exited)

    def _on_readable(self, worker: WorkerProcess) -> None:
        try:
            while data := worker.link.recv(1 << 16):
                worker.buffer += data
        except OSError:
            pass
        while (end := worker.buffer.find(b"\n")) >= 0:
            line = bytes(worker.buffer[:end])
            del worker.buffer[: end + 1]
            self._report(worker, p.from_json(line))

    def _report(self, worker: WorkerProcess, message: p.Message) -> None:
        if isinstance(message, p.Fired):
            self._fired[message.index] = (message, time.monotonic())
        elif isinstance(message, p.Launched | p.Joined | p.Ready):
            worker.standing[type(message).__name__] = message
            if isinstance(message, p.Joined):
                self._watch_life(worker)
        else:
            for name in ("Proposal", "Formed", "FormFailed", "StepFailed", "Done"):
                if type(message).__name__ == name:
                    for other in ("Proposal", "Formed", "FormFailed", "StepFailed", "Done"):
                        worker.standing.pop(other, None)
                    worker.standing[name] = message
        self._send(message)

    # --- evidence -------------------------------------------------------------------------------

    def _call_witnesses(self, rows: list[p.Progress], ages: dict[int, float]) -> None:
        """Ask for evidence while a stall is only suspected, so that no recovery waits for it."""
        if self.config.kept_incidents == 0:
            return
        limit = SUSPECTED * self.times.patience
        if not any(age >= limit for age in ages.values()):
            if self._halted <= self.generation:
                self._witnesses.dismiss(self.generation)
            return
        if self._witnesses.call():
            self._pass_on(list(ages), p.Testify())
        for row in rows:
            silent = row.state in ("T", "t") or row.side_age >= limit
            if silent and row.wid in ages:
                pid = self.workers[row.wid].process.pid
                self._witnesses.look_into(row.wid, pid, row.generation)

    def _keep_evidence(self, incident: p.Incident) -> None:
        if self.config.kept_incidents > 0:
            task = asyncio.get_running_loop().create_task(self._write_incident(incident))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write_incident(self, incident: p.Incident) -> None:
        began = time.monotonic()
        ours = {wid: _facts_of(worker) for wid, worker in self.workers.items()}
        writer = IncidentWriter(self.config, self._witnesses)
        try:
            folder = await asyncio.to_thread(writer.write, incident, ours)
        except OSError as error:
            self._tell("incident_lost", incident=incident.name, why=str(error))
            return
        self._tell("incident", incident=incident.name, folder=str(folder))
        if incident.lead == self.config.name:
            verdict = await self._judge.verdict(folder)
            if verdict is None:
                self._tell("unjudged", incident=incident.name, folder=str(folder))
            else:
                self._send(
                    p.Judged(
                        incident=incident.name,
                        folder=str(folder),
                        outcome=verdict["verdict"],
                        ranks=verdict["ranks"],
                        fault=verdict["fault"],
                        headline=verdict["headline"],
                        seconds=time.monotonic() - began,
                    )
                )

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        pause = self.times.poll
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            rows = [self.read_progress(worker) for worker in self.workers.values() if worker.alive]
            self.rows.update((row.wid, row) for row in rows)
            ages = {row.wid: row.age for row in rows if row.wid in self.members}
            old = any(age >= self.times.patience / 2 for age in ages.values())
            pause = self.times.close_poll if old else self.times.poll
            self._call_witnesses(rows, ages)
            self._beat(now, rows, {wid for wid, age in ages.items() if age >= self.times.patience})
            self._inject_by_name(rows)
            if self._lease_until and now > self._lease_until:
                self._cut_off(now)

    def _beat(self, now: float, rows: list[p.Progress], stalled: set[int]) -> None:
        """Send the progress of all workers when it is time, at once when a stall shows."""
        interval = self.times.urgent_beat if stalled else self.times.beat
        if stalled == self._stalled and now - self._last_beat < interval:
            return
        self._stalled, self._last_beat = stalled, now
        self._send(p.Beat(sent=now, workers=[_row(progress) for progress in rows]))

    def _cut_off(self, now: float) -> None:
        """Nothing was heard of the coordinator for a whole lease: fence ourselves."""
        if now - self._lease_until > REJOIN_LIMIT:
            why = f"no contact with the coordinator for {REJOIN_LIMIT:.0f} s; gave up"
            self.abort = p.Abort(why=why, code=4)
            self._ended.set()
        if not self._is_cut_off:  # the workers watch the lease too and may be gone already
            self._is_cut_off = True
            why = "no contact with the coordinator for a whole lease: workers fenced"
            self._tell("cut_off", why=why)
        self._end_workers()
        if self._channel is not None and now - self._connected > self.times.lease:
            # A cable that is plugged in again must not revive this connection: the coordinator
            # counts us as gone, we have to introduce ourselves anew.
            self._channel.abort()
            self._channel, self._away_since = None, self._away_since or now

    def read_progress(self, worker: WorkerProcess) -> p.Progress:
        """Return what the worker's record and the kernel say about it."""
        now = time.monotonic_ns()
        record = worker.progress
        sequence = record[Slot.SEQUENCE]
        if sequence != worker.sequence[0]:
            # It shows late, so it counts as progress only in a step that has become long.
            is_news = seconds_since(record[Slot.CHANGED], now) >= self.times.patience / 2
            worker.sequence = (sequence, now if is_news else worker.sequence[1])
        changed = max(record[Slot.CHANGED], worker.sequence[1])
        age = 0.0 if record[Slot.ALLOWED_UNTIL] > now else seconds_since(changed, now)
        state, cpu = "S", False
        if age >= self.times.patience / 2:
            state, used = procfs.state_and_work(worker.process.pid)
            cpu = used - worker.cpu[0] > 0.2 * (now - worker.cpu[1]) / 1e9
            worker.cpu = (used, now)
        return p.Progress(
            wid=worker.wid,
            generation=record[Slot.GENERATION],
            step=record[Slot.STEP],
            committed=record[Slot.COMMITTED],
            phase=record[Slot.PHASE],
            age=round(age, 4),
            side_age=round(seconds_since(record[Slot.SIDE], now), 4),
            sequence=sequence,
            state=state,
            cpu=cpu,
            step_seconds=record[Slot.STEP_NS] / 1e9,
            busy_seconds=record[Slot.BUSY_NS] / 1e9,
        )

    def _inject_by_name(self, rows: list[p.Progress]) -> None:
        newest = max((row.committed for row in rows if row.wid in self.members), default=0)
        for injection in self._injections:
            due = injection.rank is None and injection.step is not None
            if due and injection.index not in self._fired and newest >= (injection.step or 0):
                self._fire_by_name(injection)

    def _fire_by_name(self, injection: Injection) -> None:
        if injection.target == "coordinator" and self._kill_coordinator is not None:
            self._tell_fired(-1, injection)
            self._kill_coordinator()
        elif injection.target == "spare":
            spares = [
                worker
                for worker in self.workers.values()
                if worker.alive and "Ready" in worker.standing and worker.wid not in self.members
            ]
            if spares:
                self._tell_fired(spares[0].wid, injection)
                _kill_group(spares[0].process.pid)

    def _tell_fired(self, wid: int, injection: Injection) -> None:
        message = p.Fired(wid=wid, index=injection.index, step=injection.step or 0)
        self._fired[injection.index] = (message, time.monotonic())
        self._send(message)

    def _fired_again(self) -> list[p.Message]:
        """Return what is to be repeated to a coordinator that may have died before it heard."""
        now = time.monotonic()
        return [replace(message, ago=now - said) for message, said in self._fired.values()]


def _facts_of(worker: WorkerProcess) -> ProcessFacts:
    exited = worker.exited
    how = "" if exited is None or worker.fenced else ending(exited.code)
    return ProcessFacts(
        pid=worker.process.pid, committed=worker.progress[Slot.COMMITTED], ended=how
    )


def _row(progress: p.Progress) -> list[Any]:
    return [getattr(progress, name) for name in _ROW]


_ROW = list(p.Progress.__dataclass_fields__)


def _fault_name(code: int) -> str:
    if code >= 0:
        return "exit"
    names = {signal.SIGKILL: "kill", signal.SIGSEGV: "segv", signal.SIGABRT: "abort"}
    return names.get(signal.Signals(-code), "signal")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
