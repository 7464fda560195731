"""One ``keepstep run`` on this host: store, coordinator and agent, from start to summary."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.parent import child_of_this
from keepstep.runtime.agent import Agent
from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.environment import import_path
from keepstep.runtime.event_file import EventFile
from keepstep.runtime.incidents import ending
from keepstep.runtime.inject import Injection
from keepstep.runtime.kept_process import InfrastructureError, KeptProcess
from keepstep.runtime.metrics import MetricsServer
from keepstep.runtime.ports import listen, reserve
from keepstep.runtime.run_folder import RunFolder, place, remove_leftovers
from keepstep.runtime.settings import Settings

LAST_WORDS = 2.0  # seconds for the summary of a job that was interrupted
QUICK_DEATH = 1.0  # a coordinator that lives shorter than this failed to start
QUICK_STORE_DEATH = 10.0  # the same for the store, which imports torch


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What the user asked for, checked."""

    settings: Settings
    backend: str
    command: list[str]
    injections: tuple[Injection, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    events: Path | None = None
    incidents: Path = Path("incidents")
    kept_incidents: int = 0  # 0: none are written
    join: tuple[str, int] | None = None
    secret: str = ""
    name: str = "agent-0"
    metrics_port: int = 0  # 0: any free one
    output: tuple[int | None, int | None] = (None, None)  # for the workers; None: our own
    python: str = sys.executable  # what needs torch runs in this interpreter
    import_from: str = ""  # where another interpreter than ours finds this package


@dataclass(slots=True)
class RunResult:
    """How it ended."""

    exit_code: int
    summary: dict[str, Any] | None
    why: str = ""


@dataclass(slots=True)
class Session:
    """The processes behind one run."""

    request: RunRequest
    on_event: Callable[[dict[str, Any]], None]
    folder: Path = field(init=False)
    agent: Agent | None = field(default=None, init=False)
    _coordinator: KeptProcess | None = field(default=None, init=False)
    _store: KeptProcess | None = field(default=None, init=False)
    _ports: list[socket.socket] = field(default_factory=list, init=False)  # nobody else gets them
    _written: EventFile = field(init=False)
    _interrupted: asyncio.Task[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._written = EventFile(self.request.events)

    async def run(self) -> RunResult:
        """Run the job; no process is left when this returns."""
        self._interrupted = self._listen_to_signals()
        base = place()
        remove_leftovers(base)
        folder = RunFolder(base)
        self.folder = folder.path
        try:
            return await self._run()
        finally:
            self._stop_processes()
            folder.remove()

    async def _run(self) -> RunResult:
        request = self.request
        coordinator = request.join or (request.host, self._start_own_coordinator())
        self.agent = Agent(
            AgentConfig(
                name=request.name,
                host=request.host,
                coordinator=coordinator,
                secret=request.secret,
                workers=request.settings.workers,
                spares=request.settings.spares,
                backend=request.backend,
                command=request.command,
                vault=self.folder / "vault",
                output=request.output,
                python=request.python,
                import_from=request.import_from,
                incidents=request.incidents,
                kept_incidents=request.kept_incidents,
            ),
            self.on_event,
            self._write_and_show,
            kill_coordinator=self._kill_coordinator if request.join is None else None,
        )
        metrics = await self._serve_metrics(self.agent)
        if request.join is None and request.settings.max_agents > 1:
            address = f"{coordinator[0]}:{coordinator[1]}"
            self._tell("open_for_hosts", address=address, hosts=request.settings.min_agents)
        job = asyncio.create_task(self.agent.run())
        interrupted = self._interrupted
        kept = [each for each in (self._coordinator, self._store) if each is not None]
        tasks = [job, *(asyncio.create_task(each.keep(self._is_over)) for each in kept)]
        await asyncio.wait({*tasks, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if interrupted.done() and request.join is None:
            self.agent.interrupt()
            await asyncio.wait({job}, timeout=LAST_WORDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        metrics.close()
        self.agent.close()
        if interrupted.done():
            return RunResult(130, self.agent.summary, "interrupted")
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                raise InfrastructureError(str(task.exception())) from task.exception()
        return self._result(self.agent)

    async def _serve_metrics(self, agent: Agent) -> MetricsServer:
        host, port = self.request.host, self.request.metrics_port
        try:
            server = await MetricsServer.start(host, port, agent)
        except OSError as error:
            raise InfrastructureError(f"no metrics at {host}, port {port}: {error}") from error
        self._tell("metrics", url=server.url)
        return server

    def _result(self, agent: Agent) -> RunResult:
        if agent.abort is not None:
            return RunResult(agent.abort.code, agent.summary, agent.abort.why)
        failed = {wid: code for wid, code in agent.codes_after_finish().items() if code != 0}
        if failed:
            wid, code = next(iter(failed.items()))
            rank = f"rank {agent.members.index(wid)}" if wid in agent.members else "a spare"
            why = f"{rank} (worker {wid}) {ending(code)} after the training was complete"
            return RunResult(1, agent.summary, why)
        return RunResult(0, agent.summary)

    def _listen_to_signals(self) -> asyncio.Task[bool]:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, event.set)
        return asyncio.create_task(event.wait())

    # --- store and coordinator ------------------------------------------------------------------

    def _start_own_coordinator(self) -> int:
        request = self.request
        store_door = self._take_port(listen, 0)
        port = int(self._take_port(reserve, request.port).getsockname()[1])
        config = {
            "host": request.host,
            "port": port,
            "journal": str(self.folder / "journal.json"),
            "events": str(request.events.resolve()) if request.events is not None else None,
            "store": "{}:{}".format(*store_door.getsockname()),
            "name": time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}"),
            "settings": dataclasses.asdict(request.settings),
            "injections": [str(injection) for injection in request.injections],
        }
        (self.folder / "coordinator.json").write_text(json.dumps(config))
        # What processes leave in the store is used while a generation forms: another store serves
        # as well. Their connections to the old one are lost, see ``admission``.
        self._store = KeptProcess(
            "job's store",
            lambda: self._start_store(store_door),
            QUICK_STORE_DEATH,
            self._on_store_exit,
        )
        self._coordinator = KeptProcess(
            "coordinator", self._start_coordinator, QUICK_DEATH, self._on_coordinator_exit
        )
        return port

    def _take_port(self, way: Callable[[str, int], socket.socket], port: int) -> socket.socket:
        host = self.request.host
        try:
            taken = way(host, port)
        except OSError as error:
            raise InfrastructureError(f"cannot listen at {host}, port {port}: {error}") from error
        self._ports.append(taken)
        return taken

    def _start_store(self, door: socket.socket) -> subprocess.Popen[bytes]:
        request = self.request
        host, port = door.getsockname()
        return subprocess.Popen(
            [request.python, "-m", "keepstep.runtime.store", host, str(port), str(door.fileno())],
            env={**os.environ, **import_path(request.import_from), **child_of_this()},
            stdin=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            start_new_session=True,
        )

    def _start_coordinator(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "keepstep.runtime.coordinator",
                str(self.folder / "coordinator.json"),
            ],
            env={**os.environ, "KEEPSTEP_SECRET": self.request.secret, **child_of_this()},
            stdin=subprocess.DEVNULL,
            stderr=self.request.output[1],
            start_new_session=True,
        )

    def _kill_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.process.kill()

    def _on_store_exit(self, process: subprocess.Popen[bytes], stopped: float) -> None:
        self._tell("store_exited", **_how_it_ended(process, stopped))

    def _on_coordinator_exit(self, process: subprocess.Popen[bytes], stopped: float) -> None:
        lease = round(self.agent.lease_left, 3) if self.agent is not None else None
        self._tell("coordinator_exited", **_how_it_ended(process, stopped), lease_s=lease)

    def _is_over(self) -> bool:
        """Return whether nothing but the agent is needed to end the job."""
        return self.agent is not None and self.agent.ending

    def _tell(self, event: str, **facts: Any) -> None:
        self._write_and_show({"time": round(time.time(), 4), "event": event, **facts})

    def _write_and_show(self, fact: dict[str, Any]) -> None:
        """Write down and show what the coordinator cannot know."""
        why = self._written.append([fact])
        self.on_event(fact)
        if why:
            self.on_event({"time": fact["time"], "event": "events_lost", "why": why})

    def _stop_processes(self) -> None:
        if self.agent is not None:
            self.agent.close()
        for kept in (self._coordinator, self._store):
            if kept is not None:
                kept.end()
        for port in self._ports:
            port.close()


def _how_it_ended(process: subprocess.Popen[bytes], stopped: float) -> dict[str, Any]:
    return {"pid": process.pid, "code": process.returncode, "stopped_s": round(stopped, 1)}
