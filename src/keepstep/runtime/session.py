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
from keepstep.runtime.inject import Injection
from keepstep.runtime.metrics import MetricsServer
from keepstep.runtime.run_folder import RunFolder, place, remove_leftovers
from keepstep.runtime.settings import Settings

QUICK_DEATH = 1.0  # a coordinator that lives shorter than this failed to start
MAX_QUICK_DEATHS = 5


class InfrastructureError(Exception):
    """Something of ours, or of the machine, does not work; not the user's job."""


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
    _coordinator: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _store: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)
    _written: EventFile = field(init=False)

    def __post_init__(self) -> None:
        self._written = EventFile(self.request.events)

    async def run(self) -> RunResult:
        """Run the job; no process is left when this returns."""
        base = place()
        remove_leftovers(base)
        folder = RunFolder(base)
        self.folder = folder.path
        try:
            return await self._run()
        finally:
            self._over = True
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
        interrupted = self._listen_to_signals()
        keeper = asyncio.create_task(self._keep_coordinator())
        await asyncio.wait({job, interrupted, keeper}, return_when=asyncio.FIRST_COMPLETED)
        self._over = True
        for task in (job, keeper):
            if not task.done():
                task.cancel()
        await asyncio.gather(job, keeper, return_exceptions=True)
        metrics.close()
        self.agent.close()
        if interrupted.done():
            return RunResult(130, self.agent.summary, "interrupted")
        for task in (job, keeper):
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
            why = f"worker {wid} ended with exit code {code} after the training was complete"
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
        port = request.port or free_port(request.host)
        store_port = free_port(request.host)
        self._store = subprocess.Popen(
            [request.python, "-m", "keepstep.runtime.store", request.host, str(store_port)],
            env={**os.environ, **import_path(request.import_from), **child_of_this()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        config = {
            "host": request.host,
            "port": port,
            "journal": str(self.folder / "journal.json"),
            "events": str(request.events.resolve()) if request.events is not None else None,
            "store": f"{request.host}:{store_port}",
            "name": time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}"),
            "settings": dataclasses.asdict(request.settings),
            "injections": [str(injection) for injection in request.injections],
        }
        (self.folder / "coordinator.json").write_text(json.dumps(config))
        self._start_coordinator()
        return port

    def _start_coordinator(self) -> None:
        self._coordinator = subprocess.Popen(
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
            self._coordinator.kill()

    async def _keep_coordinator(self) -> None:
        """Start the coordinator again whenever it dies before the job has ended."""
        if self.request.join is not None:
            await asyncio.Event().wait()
        quick = 0
        while not self._over:
            began = time.monotonic()
            await self._coordinator_exit()
            if self._over or (self.agent is not None and self.agent.ending):
                await asyncio.Event().wait()  # the agent decides when the job has ended
            quick = quick + 1 if time.monotonic() - began < QUICK_DEATH else 0
            assert self._coordinator is not None
            self._tell(
                "coordinator_exited",
                pid=self._coordinator.pid,
                code=self._coordinator.returncode,
                lease_s=round(self.agent.lease_left, 3) if self.agent is not None else None,
            )
            if quick >= MAX_QUICK_DEATHS:
                raise InfrastructureError("the coordinator does not stay up; see its output above")
            self._start_coordinator()

    def _tell(self, event: str, **facts: Any) -> None:
        self._write_and_show({"time": round(time.time(), 4), "event": event, **facts})

    def _write_and_show(self, fact: dict[str, Any]) -> None:
        """Write down and show what the coordinator cannot know."""
        why = self._written.append([fact])
        self.on_event(fact)
        if why:
            self.on_event({"time": fact["time"], "event": "events_lost", "why": why})

    async def _coordinator_exit(self) -> None:
        process = self._coordinator
        assert process is not None
        descriptor = os.pidfd_open(process.pid)
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        process.wait()

    def _stop_processes(self) -> None:
        if self.agent is not None:
            self.agent.close()
        for process in (self._coordinator, self._store):
            if process is not None:
                process.kill()
                process.wait()


def free_port(host: str) -> int:
    """Return a TCP port of ``host`` that is free now."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    """Return whether ``port`` can be listened on."""
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
