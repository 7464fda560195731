"""Measure the control plane: ``python -m benchmarks.control_plane [--agents N ...] [--out FILE]``.

One real coordinator process serves simulated agents over authenticated channels on the loopback
interface. They answer its orders as agents and workers do and send one progress record a second.
Then faults strike, one after another; measured is how long the coordinator takes to tell all.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.progress import Phase as Doing
from keepstep.runtime.settings import Settings

GOAL = 1.0  # seconds from the news of a fault to the last agent's form message
GOAL_SHARE = 0.99  # of the faults
ENOUGH = 100  # faults; with fewer the 99th percentile says nothing
PATIENCE = 5.0  # seconds
STALL_EVERY = 5  # each fifth fault is a stopped process that the coordinator has to find
STEPS = 1_000_000  # of the job: it never ends by itself
SETTLE = 1.5  # seconds between a recovery and the next fault: every agent has sent a beat
IDLE = 10.0  # seconds over which the cost of progress records alone is measured
LIMIT = 120.0  # seconds to wait for anything
RETRY = 0.05  # seconds between two attempts to connect
CONNECTING = 16  # connections that are made at the same time


@dataclass(slots=True)
class Worker:
    """One simulated worker process."""

    wid: int
    alive: bool = True
    member: bool = False
    stopped: bool = False
    generation: int = 0  # of the last form
    proposed: int = 0  # generation of the last proposal


@dataclass(slots=True)
class World:
    """What all agents see of the job, and when each of them was told."""

    agents: int
    committed: int = 0
    generation: int = 0
    stalled: int = 0  # generation in which a member is stopped and all others wait
    halts: dict[int, list[float]] = field(default_factory=dict)  # generation -> moments
    forms: dict[int, list[float]] = field(default_factory=dict)
    rows_of: dict[int, dict[int, int]] = field(default_factory=dict)  # generation -> wid -> rank
    form_bytes: int = 0
    halt_bytes: int = 0
    live: asyncio.Event = field(default_factory=asyncio.Event)
    abort: str = ""

    def on_halt(self, generation: int) -> None:
        """One agent was told to halt."""
        self.halts.setdefault(generation, []).append(time.monotonic())
        self.live.clear()

    def on_form(self, form: p.Form) -> None:
        """One agent was told about a generation; the last one lets the job go on."""
        if form.generation not in self.rows_of:
            self.rows_of = {form.generation: {w: rank for rank, w in enumerate(form.members)}}
        moments = self.forms.setdefault(form.generation, [])
        moments.append(time.monotonic())
        self.generation = form.generation
        if len(moments) == self.agents:
            self.committed = form.start_step + 1
            self.live.set()


class Agent:
    """One simulated host; see the module's text."""

    def __init__(self, number: int, ranks: int, spares: int, world: World) -> None:
        """Make an agent that is not connected yet."""
        self.number, self.ranks, self.spares, self.world = number, ranks, spares, world
        self.name = f"host{number:05d}"
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.workers: dict[int, Worker] = {}
        self.channel: p.Channel | None = None

    async def run(self, port: int, secret: str, gate: asyncio.Semaphore, rate: float) -> None:
        """Take part in the job until cancelled."""
        async with gate:
            self.channel = await self.connect(port, secret)
            self.channel.send(
                p.Hello(
                    agent=self.name,
                    host=self.address,
                    sent=time.monotonic(),
                    address=f"{self.address}:40000",
                    workers=self.ranks,
                    spares=self.spares,
                    wids=[],
                )
            )
            self.take(await self.channel.receive())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.beat(rate))
            tasks.create_task(self.go_on())
            while True:
                self.take(await self.channel.receive())

    async def connect(self, port: int, secret: str) -> p.Channel:
        """Connect as a real agent does: again and again."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return await p.connect("127.0.0.1", port, secret, LIMIT)
            except (EOFError, OSError, p.AuthenticationError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY)

    def send(self, message: p.Message) -> None:
        """Say something to the coordinator."""
        assert self.channel is not None
        self.channel.send(message)

    async def beat(self, rate: float) -> None:
        """Send progress ``rate`` times a second, from a moment of our own."""
        await asyncio.sleep(random.random() / rate)
        due = time.monotonic()
        while True:
            self.tell_progress()
            due = max(due + 1 / rate, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def go_on(self) -> None:
        """Say that the first step of each generation is committed; leave snapshots."""
        told = 0
        while True:
            await self.world.live.wait()
            await asyncio.sleep(random.random() * SETTLE / 2)
            if told != self.world.generation and self.world.live.is_set():
                told = self.world.generation
                for worker in self.members():
                    self.resume(worker, told)
            await asyncio.sleep(0.1)

    def members(self) -> list[Worker]:
        """Return the workers with a rank."""
        return [worker for worker in self.workers.values() if worker.alive and worker.member]

    def resume(self, worker: Worker, generation: int) -> None:
        """A member committed its first step; each tenth has a snapshot."""
        step = self.world.committed
        self.send(p.Resumed(wid=worker.wid, generation=generation, committed=step, ago=0.0))
        if generation == 1 or step % 10 == 0:
            ranks = self.world.rows_of[generation]
            rank = ranks[worker.wid]
            self.send(
                p.SnapshotTaken(
                    wid=worker.wid,
                    rank=rank,
                    committed=step,
                    digest=digest(step),
                    payload=rank in (0, len(ranks) - 1),
                    seconds=0.001,
                )
            )

    def tell_progress(self) -> None:
        """Send a beat with one row a worker."""
        rows = [self.progress(worker) for worker in self.workers.values() if worker.alive]
        self.send(p.Beat(sent=time.monotonic(), workers=rows))

    def progress(self, worker: Worker) -> list[Any]:
        """Return what an agent reads of a worker; in a stall all members wait."""
        step = self.world.committed
        age = 0.2
        if worker.member and worker.generation == self.world.stalled:
            age = PATIENCE * (1.1 if worker.stopped else 1.05)
        row = p.Progress(
            wid=worker.wid,
            generation=worker.generation if worker.member else 0,
            step=step,
            committed=step,
            phase=int(Doing.COLLECTIVE if worker.member else Doing.WAITING),
            age=age,
            side_age=age if worker.stopped else 0.02,
            sequence=4 * step,
            state="T" if worker.stopped else "S",
            cpu=False,
            step_seconds=1.0 + 0.001 * (worker.wid % 7) if worker.member else 0.0,
            busy_seconds=0.8 + 0.001 * (worker.wid % 7) if worker.member else 0.0,
        )
        return [getattr(row, name) for name in ROW]

    def exit(self, worker: Worker, fault: str) -> None:
        """The process ends; the agent sees it."""
        worker.alive = worker.stopped = False
        self.send(
            p.Exited(
                wid=worker.wid,
                fault=fault,
                code=-9,
                committed=self.world.committed,
                entry=self.world.committed,
                ago=0.0,
                joined=True,
            )
        )

    def stop(self, worker: Worker) -> None:
        """The process is stopped; the agent's next progress record says so."""
        self.world.stalled, worker.stopped = worker.generation, True
        self.tell_progress()

    # --- orders -----------------------------------------------------------------------------

    def take(self, message: p.Message) -> None:
        """Do what the coordinator says."""
        if isinstance(message, p.Launch):
            for wid in message.wids:
                self.start(wid)
        elif isinstance(message, p.Halt):
            self.world.on_halt(message.generation)
            wids = set(message.wids)
            for worker in self.members():
                if worker.wid in wids and not worker.stopped:
                    self.propose(worker, message.generation)
        elif isinstance(message, p.Form):
            self.world.on_form(message)
            self.form(message)
        elif isinstance(message, p.Fence):
            worker = self.workers[message.wid]
            if worker.alive:
                self.exit(worker, "fence")
        elif isinstance(message, p.Abort):
            self.world.abort = message.why

    def start(self, wid: int) -> None:
        """A process is launched and gets as far as to wait for a rank."""
        self.workers[wid] = Worker(wid)
        self.send(p.Launched(wid=wid, pid=10_000 + wid))
        self.send(p.Joined(wid=wid, torch="2.15.0"))
        self.send(
            p.Ready(
                wid=wid,
                handle=handle(wid, 0),
                steps=STEPS,
                digest=digest(0),
                address=f"{self.address}:{41_000 + wid % 1000}",
            )
        )

    def propose(self, worker: Worker, generation: int) -> None:
        """A member has left its step."""
        if worker.proposed < generation:
            worker.proposed = generation
            self.send(
                p.Proposal(
                    wid=worker.wid,
                    generation=generation,
                    committed=self.world.committed,
                    clean=True,
                    digest=digest(self.world.committed),
                    handle=handle(worker.wid, generation),
                    entry=self.world.committed,
                )
            )

    def form(self, form: p.Form) -> None:
        """Members enter the generation."""
        ranks = self.world.rows_of[form.generation]
        for worker in self.workers.values():
            worker.member = worker.wid in ranks
            if worker.member and worker.alive:
                worker.generation = form.generation
                self.send(
                    p.Formed(
                        wid=worker.wid,
                        generation=form.generation,
                        step=form.start_step,
                        seconds={"reconfigure": 0.1, "transfer": 0.0},
                    )
                )


ROW = list(p.Progress.__dataclass_fields__)


@functools.lru_cache(maxsize=4)
def digest(step: int) -> str:
    """Return 64 hexadecimal digits for the state after ``step`` steps."""
    return f"{step * 0x9E3779B97F4A7C15F39CC0605CEDC834:064x}"[:64]


def handle(wid: int, generation: int) -> str:
    """Return what stands for a process group's handle: different for each, hard to compress."""
    return f"gloo:{wid:08d}:{(wid + 1) * (generation + 7) * 2654435761 % (1 << 64):016x}"


# --- the coordinator process --------------------------------------------------------------------


@dataclass(slots=True)
class Coordinator:
    """The real coordinator, as a process of its own."""

    folder: Path
    secret: str
    port: int
    process: subprocess.Popen[bytes]
    profiled: bool

    @classmethod
    def start(cls, folder: Path, settings: Settings, profile: Path | None) -> Coordinator:
        """Start it on a free port; with ``profile``, under cProfile."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = folder / "coordinator.json"
        body = {
            "host": "127.0.0.1",
            "port": port,
            "journal": str(folder / "journal.json"),
            "events": str(folder / "events.jsonl"),
            "store": "127.0.0.1:1",
            "name": "job",
            "settings": asdict(settings),
            "injections": [],
        }
        config.write_text(json.dumps(body))
        secret = p.new_secret()
        profiler = ["-m", "cProfile", "-o", str(profile)] if profile is not None else []
        process = subprocess.Popen(
            [sys.executable, *profiler, "-m", "keepstep.runtime.coordinator", str(config)],
            env={**os.environ, "KEEPSTEP_SECRET": secret},
        )
        _until_it_listens(port, process)
        return cls(folder, secret, port, process, profile is not None)

    def stop(self) -> None:
        """End it; under cProfile by SIGINT, so that the profile is written."""
        self.process.send_signal(signal.SIGINT if self.profiled else signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def cpu(self) -> float:
        """Processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_memory(self) -> int:
        """Largest resident memory so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def moments(self, event: str) -> dict[int, float]:
        """Return generation -> wall time at which all of ``event`` was handed to the kernel."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        facts = [json.loads(line) for line in lines]
        return {f["generation"]: f["time"] for f in facts if f["event"] == event}


def _until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the coordinator does not listen; its output above says why")


# --- one measurement ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is measured."""

    agents: int
    workers: int
    faults: int
    rate: float
    profile: Path | None = None


async def measure(plan: Plan) -> dict[str, Any]:
    """Return the record of one measurement."""
    world = World(plan.agents)
    _count_bytes(world)
    settings = Settings(
        workers=plan.workers - 1,
        spares=1,
        min_agents=plan.agents,
        max_agents=plan.agents,
        patience=PATIENCE,
        max_recoveries=10 * plan.faults + 10,
    )
    with tempfile.TemporaryDirectory(prefix="keepstep-control-plane-") as folder:
        coordinator = Coordinator.start(Path(folder), settings, plan.profile)
        try:
            return await _drive(plan, world, coordinator)
        finally:
            coordinator.stop()


async def _drive(plan: Plan, world: World, coordinator: Coordinator) -> dict[str, Any]:
    agents = [Agent(number, plan.workers - 1, 1, world) for number in range(plan.agents)]
    gate = asyncio.Semaphore(CONNECTING)
    began = time.monotonic()
    tasks = [
        asyncio.create_task(agent.run(coordinator.port, coordinator.secret, gate, plan.rate))
        for agent in agents
    ]
    try:
        await _until(world.live.is_set, world, tasks)
        joined = time.monotonic() - began
        say(f"{plan.agents} agents: all joined and formed after {joined:.1f} s")
        await asyncio.sleep(2 * SETTLE)
        idle = await _cpu_share(coordinator)
        say(f"{plan.agents} agents: progress records alone take {idle:.0%} of a core")
        used, since = coordinator.cpu, time.monotonic()
        faults = [await _fault(number, agents, world, tasks) for number in range(plan.faults)]
        busy = (coordinator.cpu - used) / (time.monotonic() - since)
        peak = coordinator.peak_memory
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    _add_coordinator_times(faults, coordinator)
    return {
        "agents": plan.agents,
        "workers": plan.workers,
        "rate": plan.rate,
        "join_s": joined,
        "idle_cpu": idle,
        "fault_cpu": busy,
        "peak_bytes": peak,
        "unasked": world.generation - 1 - len(faults),
        "halt_bytes": world.halt_bytes,
        "form_bytes": world.form_bytes,
        "load": os.getloadavg()[0],
        "faults": faults,
    }


async def _cpu_share(coordinator: Coordinator) -> float:
    used, since = coordinator.cpu, time.monotonic()
    await asyncio.sleep(IDLE)
    return (coordinator.cpu - used) / (time.monotonic() - since)


async def _fault(
    number: int, agents: Sequence[Agent], world: World, tasks: Sequence[asyncio.Task[None]]
) -> dict[str, Any]:
    """Let one random member fail; return what it took to tell all agents."""
    await asyncio.sleep(SETTLE + random.random())
    generation = world.generation + 1
    agent = random.choice(agents)
    worker = random.choice(agent.members())
    stall = number % STALL_EVERY == STALL_EVERY - 1
    wall, began = time.time(), time.monotonic()
    if stall:
        agent.stop(worker)
    else:
        agent.exit(worker, "kill")
    await _until(lambda: len(world.forms.get(generation, ())) == world.agents, world, tasks)
    halts = [moment - began for moment in world.halts.pop(generation)]
    forms = [moment - began for moment in world.forms.pop(generation)]
    if number % 10 == 9:
        say(f"{world.agents} agents: fault {number + 1}, {max(forms):.2f} s to the last form")
    return {
        "kind": "stop" if stall else "kill",
        "generation": generation,
        "wall": wall,
        "halt_last": max(halts),
        "halt_median": statistics.median(halts),
        "form_last": max(forms),
        "form_median": statistics.median(forms),
    }


def _add_coordinator_times(faults: list[dict[str, Any]], coordinator: Coordinator) -> None:
    """Add when the coordinator had handed each message for all agents to its sockets."""
    moments = coordinator.moments("form")
    for fault in faults:
        fault["form_sent"] = moments[fault["generation"]] - fault["wall"]


async def _until(
    reached: Callable[[], bool], world: World, tasks: Sequence[asyncio.Task[None]]
) -> None:
    deadline = time.monotonic() + LIMIT
    while not reached():
        ended = next((task for task in tasks if task.done()), None)
        if ended is not None:
            ended.result()
        if world.abort:
            raise RuntimeError(f"the coordinator ended the job: {world.abort}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing for {LIMIT:.0f} s in generation {world.generation}")
        await asyncio.sleep(0.02)


def _count_bytes(world: World) -> None:
    """Read equal messages once: every real agent has a processor of its own to do it."""

    @functools.lru_cache(maxsize=64)
    def unpack_once(flag: bytes, body: bytes) -> p.Message:
        message = _unpack(flag, body)
        if isinstance(message, p.Form):
            world.form_bytes = len(body)
        elif isinstance(message, p.Halt):
            world.halt_bytes = len(body)
        return message

    p.unpack = unpack_once


_unpack = p.unpack


# --- the report -----------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


HEAD = (
    "| agents | ranks | joined (s) | CPU idle | CPU faults | memory (MB) | halt (KB) | form (KB) "
    "| halt p50 | halt p99 | form sent p50 | form sent p99 | form p50 | form p99 |\n" + "|---" * 14
) + "|"


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as Markdown."""
    lines = [HEAD, *(row(record) for record in records), "", *(map(verdict, records))]
    return "\n".join(lines) + "\n"


def row(record: Mapping[str, Any]) -> str:
    """Return one line of the table."""
    cells = [
        f"{record['agents']}",
        f"{record['agents'] * (record['workers'] - 1)}",
        f"{record['join_s']:.1f}",
        f"{record['idle_cpu']:.0%}",
        f"{record['fault_cpu']:.0%}",
        f"{record['peak_bytes'] / 1e6:.0f}",
        f"{record['halt_bytes'] / 1e3:.1f}",
        f"{record['form_bytes'] / 1e3:.1f}",
    ]
    for name in ("halt_last", "form_sent", "form_last"):
        values = [fault[name] for fault in record["faults"]]
        cells += [f"{percentile(values, 0.5):.3f}", f"{percentile(values, GOAL_SHARE):.3f}"]
    return "| " + " | ".join(cells) + " |"


def verdict(record: Mapping[str, Any]) -> str:
    """Return whether the goal is met."""
    values = [fault["form_last"] for fault in record["faults"]]
    reached = percentile(values, GOAL_SHARE)
    word = "met" if reached <= GOAL else "missed"
    if len(values) < ENOUGH:
        word = f"inconclusive ({len(values)} faults, {ENOUGH} are wanted)"
    return (
        f"- {record['agents']} agents: planned and announced within {reached:.2f} s at the "
        f"{GOAL_SHARE:.0%} point of {len(values)} faults, goal {GOAL:g} s: {word}; "
        f"{record['unasked']} generations that no fault asked for"
    )


def say(text: str) -> None:
    """Tell about progress; standard output is for the report alone."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each size; print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_plane", description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[200, 1000, 2000])
    parser.add_argument("--workers", type=int, default=8, help="of each agent, one is a spare")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1.0, help="progress records a second")
    parser.add_argument("--out", type=Path, default=Path("control-plane.json"))
    parser.add_argument("--profile", type=Path, help="have cProfile write here (it slows down)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)  # so that the coordinator's files do not outlive us
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    records = []
    for agents in options.agents:
        plan = Plan(
            agents=agents,
            workers=options.workers,
            faults=options.faults,
            rate=options.rate,
            profile=options.profile,
        )
        records.append(asyncio.run(measure(plan)))
        options.out.write_text(json.dumps(records, indent=1) + "\n")
    print(render(records), end="")
    return 0


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
