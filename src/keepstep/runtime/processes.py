"""The worker processes of one host: how they start, what they say, how they end.

Nothing here depends on a worker that answers: an exit comes from the robust mutex that it holds and
from its process descriptor, and a fence is a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from keepstep.runtime import deathwatch, vault
from keepstep.runtime import protocol as p
from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.environment import worker_environment
from keepstep.runtime.inject import Injection
from keepstep.runtime.kept_process import InfrastructureError
from keepstep.runtime.progress import ProgressRecord, Slot, seconds_since
from keepstep.runtime.snapshots import KEPT

_KEPT = ("Launched", "Joined", "Ready", "ChangedLate")  # of what a worker says, what stays true
_LAST = ("Proposal", "Formed", "FormFailed", "StepFailed", "Done")  # only the newest is true


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
    snapshots: deque[p.SnapshotTaken] = field(default_factory=lambda: deque(maxlen=KEPT))
    exited: p.Exited | None = None
    fenced: bool = False
    buffer: bytearray = field(default_factory=bytearray)
    sequence: tuple[int, int] = (0, 0)  # value, when it was first seen (ns)
    cpu: tuple[float, int] = (0.0, 0)  # seconds that the main thread worked, when read (ns)

    @property
    def alive(self) -> bool:
        """Whether the process runs (or is stopped)."""
        return self.exited is None


class Processes:
    """The workers of this host, dead ones included, by their numbers.

    Args:
        config: what ``keepstep run`` told the agent.
        say: is given what a worker says, for the coordinator.
        on_exit: is given a worker when it can compute no more; ``exited`` says how it ended.
    """

    def __init__(
        self,
        config: AgentConfig,
        say: Callable[[p.Message], None],
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        """Start nobody until ``start``."""
        self._config, self._say, self._exit = config, say, on_exit
        self.workers: dict[int, WorkerProcess] = {}

    def alive(self) -> list[WorkerProcess]:
        """Return those that run (or are stopped)."""
        return [worker for worker in self.workers.values() if worker.alive]

    def standing(self) -> list[p.Message]:
        """Return what the workers said last, for a coordinator that may not have heard it."""
        found: list[p.Message] = []
        for worker in self.workers.values():
            found += worker.standing.values()
            found += worker.snapshots
        return found

    def forget_snapshots(self, after: int) -> None:
        """Forget those of steps after the first ``after``: they are about to be done again."""
        for worker in self.workers.values():
            kept = [taken for taken in worker.snapshots if taken.committed <= after]
            worker.snapshots = deque(kept, maxlen=KEPT)

    # --- start and end --------------------------------------------------------------------------

    def start(
        self,
        wid: int,
        rank: int,
        *,
        store: tuple[str, int],
        world_size: int,
        injections: tuple[Injection, ...],
        prepare: Callable[[ProgressRecord], None],
    ) -> None:
        """Start worker ``wid``, unless there is one; ``prepare`` fills in its record."""
        if wid in self.workers:
            return
        taken = {worker.local_rank for worker in self.alive()}
        local_rank = next(place for place in range(len(taken) + 1) if place not in taken)
        path = self._config.vault / f"progress-{wid}"
        try:
            progress = ProgressRecord.create(path)
        except OSError as error:
            raise InfrastructureError(
                f"no room for another process in {path.parent}: {error.strerror}. It holds "
                "snapshots of the training's state; in a container give it more --shm-size"
            ) from error
        prepare(progress)
        ours, theirs = socket.socketpair()
        environment = worker_environment(
            wid=wid,
            rank=rank,
            local_rank=local_rank,
            link=theirs.fileno(),
            progress=path,
            store=store,
            world_size=world_size,
            agent=self._config,
            injections=injections,
        )
        process = subprocess.Popen(
            [
                self._config.python,
                "-m",
                "keepstep.runtime.bootstrap",
                str(os.getpid()),
                *self._config.command,
            ],
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._config.output[0],
            stderr=self._config.output[1],
        )
        theirs.close()
        ours.setblocking(False)
        descriptor = os.pidfd_open(process.pid)
        worker = WorkerProcess(
            wid, local_rank, process, descriptor, ours, progress, time.monotonic()
        )
        self.workers[wid] = worker
        self._take(worker, p.Launched(wid=wid, pid=process.pid))
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._on_exit, worker)
        loop.add_reader(ours, self._on_readable, worker)

    def fence(self, wid: int) -> None:
        """Kill a worker; of one that has ended already, the exit is told again."""
        worker = self.workers.get(wid)
        if worker is None:
            return
        if worker.exited is not None:
            self._say(worker.exited)
            return
        worker.fenced = True
        kill_group(worker.process.pid)

    def fence_all(self) -> None:
        """Fence every worker."""
        for wid in self.workers:
            self.fence(wid)

    def end(self) -> None:
        """Kill every worker and wait for it. May be called twice."""
        for worker in self.alive():
            kill_group(worker.process.pid)
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(5)

    def _watch_life(self, worker: WorkerProcess) -> None:
        """Have the loop told of the worker's death as early as it can be proven."""
        if self._config.backend == "nccl":
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
        kill_group(worker.process.pid)  # helpers that it started (data loader processes)
        asyncio.get_running_loop().remove_reader(worker.link)
        worker.link.close()
        committed, entry = vault.known_counts(vault.read_records(self._config.vault, worker.wid))
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
        self._exit(worker)

    # --- orders and words -----------------------------------------------------------------------

    def pass_on(self, wids: Iterable[int], message: p.Message) -> None:
        """Give the coordinator's order to those of ``wids`` that live here."""
        line = p.to_json(message) + b"\n"
        for wid in wids:
            worker = self.workers.get(wid)
            if worker is not None and worker.alive:
                with contextlib.suppress(OSError):
                    worker.link.sendall(line)

    def _on_readable(self, worker: WorkerProcess) -> None:
        try:
            while data := worker.link.recv(1 << 16):
                worker.buffer += data
        except OSError:
            pass
        while (end := worker.buffer.find(b"\n")) >= 0:
            line = bytes(worker.buffer[:end])
            del worker.buffer[: end + 1]
            self._take(worker, p.from_json(line))

    def _take(self, worker: WorkerProcess, message: p.Message) -> None:
        name = type(message).__name__
        if name in _KEPT or (isinstance(message, p.Resumed) and message.digest):
            worker.standing[name] = message
            if isinstance(message, p.Joined):
                self._watch_life(worker)
        elif name in _LAST:
            for other in _LAST:
                worker.standing.pop(other, None)
            worker.standing[name] = message
        elif isinstance(message, p.SnapshotTaken):
            worker.snapshots.append(message)
        self._say(message)


def _fault_name(code: int) -> str:
    if code >= 0:
        return "exit"
    names = {signal.SIGKILL: "kill", signal.SIGSEGV: "segv", signal.SIGABRT: "abort"}
    return names.get(signal.Signals(-code), "signal")


def kill_group(pid: int) -> None:
    """Kill a worker and what it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
