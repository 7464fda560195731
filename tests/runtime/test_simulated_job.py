"""A job without processes: ``Membership`` driven by simulated agents and workers and a fake clock.

``SimulatedJob`` answers orders as real agents and workers do (Launch with Launched, Joined and
Ready; Halt with Proposal; Form with Formed and Resumed; Fence with Exited), lets members commit
steps together, and checks at every Form what must always hold. The tests here show that the
simulation itself behaves; what it is for is in ``test_membership*.py``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from keepstep.runtime import journal
from keepstep.runtime import protocol as p
from keepstep.runtime.job_state import ALL
from keepstep.runtime.membership import Membership
from keepstep.runtime.progress import Phase as Doing
from keepstep.runtime.roster import Phase
from keepstep.runtime.settings import Settings
from keepstep.runtime.snapshots import KEPT

ROUND = 0.1  # seconds; members that can commit one step a round
FRAME = 8  # messages that arrive in one piece, at most
LAST_WORDS = ("Proposal", "Formed", "FormFailed", "StepFailed", "Done")


@dataclass
class SimulatedWorker:
    """One worker process. ``base`` stands for the history of its replicated state."""

    wid: int
    agent: str
    born: float
    base: str
    alive: bool = True
    ready: bool = False
    hung: bool = False
    dirty: bool = False
    committed: int = 0
    entry: int = 0
    generation: int = 0
    proposed: int = 0
    doing: str = "starting"  # starting, waiting, forming, training, blocked, done
    halt: p.Halt | None = None
    form: p.Form | None = None
    quiet_since: float = 0.0
    told_resumed: bool = True
    prove: bool = False
    standing: dict[str, p.Message] = field(default_factory=dict)
    taken: list[p.SnapshotTaken] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Digest of the replicated state that it holds."""
        return f"{self.base}:{self.committed}"

    @property
    def handle(self) -> str:
        """Handle of its process group."""
        return f"h{self.wid}.{self.generation}"


@dataclass
class SimulatedAgent:
    """One host."""

    name: str
    workers: int
    spares: int
    connected: bool = False
    cut_off_since: float | None = None
    running: dict[int, SimulatedWorker] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where its vault is."""
        return f"{self.name}:1"


@dataclass
class SimulatedJob:
    """See the module's text."""

    settings: Settings
    steps: int = 20
    hosts: int = 1
    seeded: bool = True  # every worker builds the same initial state
    job: Membership = field(init=False)
    now: float = 1000.0
    agents: dict[str, SimulatedAgent] = field(default_factory=dict)
    journal: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)  # the job as it was at that moment
    forms: list[p.Form] = field(default_factory=list)
    sent: list[tuple[str, p.Message]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    abort: p.Abort | None = None
    finished: bool = False
    starting_allowed: bool = True
    held: set[int] = field(default_factory=set)  # workers that do not get through forming
    coordinator_up: bool = True
    raising: dict[int, bool] = field(default_factory=dict)  # step -> after the state changed?
    raised_on: set[int] = field(default_factory=set)  # wids that raise; empty: rank 0
    mirrors_behind: int = 0  # generations between what a lost host had and what its mirror has
    raising_on_entry: set[int] = field(default_factory=set)  # the script, in these workers
    snapshots_missing: set[int] = field(default_factory=set)  # step counts
    records_missing: bool = False  # those that lost ranks left
    repeatable: bool = False  # a step that is done again gives the same bits
    snapshots_every: int = 0
    saved: dict[str, str] = field(default_factory=dict)  # digest -> base
    inbox: deque[tuple[str, p.Message]] = field(default_factory=deque)
    interrupt: Callable[[p.Message], bool] = lambda message: False  # lose it and what follows?

    def __post_init__(self) -> None:
        """Start the coordinator and the agents."""
        self.job = Membership(settings=self.settings, store="store:1", now=self.now)
        for number in range(self.hosts):
            self.add_agent(f"host{number}")

    # --- the world ---------------------------------------------------------------------------

    def add_agent(self, name: str) -> None:
        """Have an agent join."""
        self.agents[name] = SimulatedAgent(name, self.settings.workers, self.settings.spares)
        self.hello(name)

    def hello(self, name: str) -> None:
        """Have the agent (re)connect and say what its workers said last."""
        agent = self.agents[name]
        agent.connected = True
        standing: list[p.Message] = []
        for worker in agent.running.values():
            standing += [*worker.standing.values(), *worker.taken[-KEPT:]]
        hello = p.Hello(
            agent=name,
            host=name,
            sent=self.now,
            address=agent.address,
            workers=agent.workers,
            spares=agent.spares,
            wids=list(agent.running),
            standing=[p.to_dict(message) for message in standing],
        )
        self.job.on_hello(hello, self.now)
        self.pump()

    def worker(self, wid: int) -> SimulatedWorker:
        """Return one worker."""
        return next(a.running[wid] for a in self.agents.values() if wid in a.running)

    @property
    def all_workers(self) -> list[SimulatedWorker]:
        """Every worker that was ever started."""
        return [worker for agent in self.agents.values() for worker in agent.running.values()]

    @property
    def members(self) -> list[SimulatedWorker]:
        """Members of the newest generation."""
        return [self.worker(wid) for wid in self.forms[-1].members] if self.forms else []

    @property
    def spares(self) -> list[int]:
        """Workers that wait for a rank."""
        members = {worker.wid for worker in self.members}
        return [w.wid for w in self.all_workers if w.alive and w.ready and w.wid not in members]

    # --- faults ------------------------------------------------------------------------------

    def kill(self, wid: int, fault: str = "kill", code: int = -9) -> None:
        """The process dies; its agent sees it."""
        worker = self.worker(wid)
        if not worker.alive:
            return
        worker.alive = False
        exited = p.Exited(
            wid=wid,
            fault=fault,
            code=code,
            committed=worker.committed if worker.generation else -1,
            entry=worker.entry if worker.generation else -1,
            ago=0.0,
            joined="Joined" in worker.standing,
        )
        worker.standing["Exited"] = exited
        self.say(worker.agent, exited)

    def lose_host(self, name: str) -> None:
        """Unplug the host: nothing arrives from or at it, and its peers wait for its members."""
        agent = self.agents[name]
        agent.connected, agent.cut_off_since = False, self.now
        self.job.on_disconnect(name, self.now)
        self.pump()

    def bring_back(self, name: str) -> None:
        """Plug it in again."""
        self.agents[name].cut_off_since = None
        self.hello(name)

    def obey_leases(self) -> None:
        """A cut-off agent fences its workers when its lease ends."""
        for agent in self.agents.values():
            since = agent.cut_off_since
            if since is not None and self.now - since >= self.job.times.lease:
                for worker in agent.running.values():
                    self.kill(worker.wid, "fence")

    def reachable(self, worker: SimulatedWorker) -> bool:
        """Whether the other hosts reach the worker's."""
        return self.agents[worker.agent].cut_off_since is None

    def crash_coordinator(self) -> None:
        """What was decided since the last journal, and what was not sent yet, is lost."""
        self.coordinator_up = False
        self.inbox.clear()

    def restart_coordinator(self, *, introduce: bool = True) -> None:
        """Take up the job from the journal; agents introduce themselves."""
        self.crash_coordinator()
        self.job = journal.from_record(json.loads(json.dumps(self.journal)), self.now)
        self.written = {}
        self.coordinator_up = True
        if introduce:
            for name, agent in self.agents.items():
                if agent.connected:
                    self.hello(name)

    # --- messages ----------------------------------------------------------------------------

    def say(self, agent: str, message: p.Message) -> None:
        """Send a message to the coordinator, as an agent or through it."""
        wid = getattr(message, "wid", None)
        if isinstance(message, p.Launched | p.Joined | p.Ready):
            self.worker(message.wid).standing[type(message).__name__] = message
        elif isinstance(message, p.Resumed) and message.digest:
            self.worker(message.wid).standing["Resumed"] = message
        elif type(message).__name__ in LAST_WORDS and isinstance(wid, int):
            standing = self.worker(wid).standing
            for name in LAST_WORDS:
                standing.pop(name, None)
            standing[type(message).__name__] = message
        if self.agents[agent].connected and self.coordinator_up:
            self.inbox.append((agent, message))

    def pump(self) -> None:
        """Deliver everything in both directions until nobody has anything to say."""
        for _ in range(5000):
            self.flush()
            if not self.inbox:
                return
            agent, message = self.inbox.popleft()
            frame = [message]  # what one agent has to say arrives in one piece
            while self.inbox and self.inbox[0][0] == agent and len(frame) < FRAME:
                frame.append(self.inbox.popleft()[1])
            self.job.on_messages(agent, frame, self.now)
        raise AssertionError("the exchange of messages never ends")

    def write_journal(self) -> None:
        """Write down what has changed; that it is the whole is checked each time."""
        record = journal.to_record(self.job)
        change = journal.difference(self.written, record) if self.written else None
        whole = json.loads(json.dumps(record))
        if change is None:
            self.journal = whole
        else:
            journal.apply(self.journal, json.loads(json.dumps(change)))
            assert self.journal == whole
            assert list(self.journal["agents"]) == list(whole["agents"])
        self.written = record

    def flush(self) -> None:
        """Write the journal, then deliver: the order of the real coordinator."""
        if not self.coordinator_up:
            return
        if self.job.changed:
            self.job.changed = False
            self.write_journal()
        outbox, self.job.outbox = self.job.outbox, []
        self.events += self.job.events
        self.job.events = []
        for to, message in outbox:
            self.sent.append((to, message))
            if self.interrupt(message):
                return
            if isinstance(message, p.Form):
                self.check(message)
                self.forms.append(message)
            for name, agent in self.agents.items():
                if to in (ALL, name) and agent.connected:
                    self.order(agent, message)

    def order(self, agent: SimulatedAgent, message: p.Message) -> None:
        """What an agent does with an order."""
        if isinstance(message, p.Launch):
            for wid in message.wids:
                if wid not in agent.running:
                    base = "init" if self.seeded else f"init{wid}"
                    agent.running[wid] = SimulatedWorker(wid, agent.name, self.now, base)
                    self.say(agent.name, p.Launched(wid=wid, pid=10_000 + wid))
        elif isinstance(message, p.Fence) and message.wid in agent.running:
            worker = agent.running[message.wid]
            if worker.alive:
                self.kill(message.wid, "fence")
            else:
                self.say(agent.name, worker.standing["Exited"])
        elif isinstance(message, p.Halt):
            for wid in message.wids:
                if wid in agent.running:
                    self.halt(agent.running[wid], message)
        elif isinstance(message, p.Form):
            for wid in message.members:
                if wid in agent.running:
                    self.begin_forming(agent.running[wid], message)
            for worker in agent.running.values():
                kept = [taken for taken in worker.taken if taken.committed <= message.start_step]
                worker.taken = kept
        elif isinstance(message, p.Recall):
            for wid in message.wids:
                lost = self.worker(wid)
                answer = p.Kept(
                    wid=wid,
                    committed=lost.committed,
                    entry=lost.entry,
                    generation=lost.generation - self.mirrors_behind,
                )
                self.say(agent.name, answer)
        elif isinstance(message, p.Finish):
            self.finished = True
            for worker in agent.running.values():
                if worker.alive:
                    self.kill(worker.wid, "exit", 0)
        elif isinstance(message, p.Abort):
            self.abort = message
            for worker in agent.running.values():
                worker.alive = False

    # --- workers -----------------------------------------------------------------------------

    def halt(self, worker: SimulatedWorker, halt: p.Halt) -> None:
        """A worker learns that its generation ends."""
        if not worker.alive or worker.hung or not worker.ready:
            return
        worker.halt = halt
        at_boundary = halt.at_step is None or worker.committed >= halt.at_step
        if at_boundary or worker.doing != "training":
            self.propose(worker)

    def propose(self, worker: SimulatedWorker) -> None:
        """Say what it holds, once a generation."""
        halt = worker.halt
        if halt is None or halt.generation <= max(worker.generation, worker.proposed):
            return
        if worker.form is not None:
            self.fail_forming(worker, "halted")
        worker.proposed, worker.doing = halt.generation, "waiting"
        self.say(
            worker.agent,
            p.Proposal(
                wid=worker.wid,
                generation=halt.generation,
                committed=worker.committed,
                clean=not worker.dirty,
                digest="" if worker.dirty else worker.digest,
                handle=worker.handle,
                entry=worker.entry,
                member_of=worker.generation,
                repeatable=self.repeatable,
            ),
        )

    def begin_forming(self, worker: SimulatedWorker, form: p.Form) -> None:
        """A worker is told that it is a member."""
        superseded = worker.halt is not None and worker.halt.generation > form.generation
        if worker.alive and not worker.hung and not superseded:
            worker.form, worker.doing = form, "forming"

    def fail_forming(
        self, worker: SimulatedWorker, why: str, *, lacks: str = "", suspect: int = -1
    ) -> None:
        """A worker gives up entering a generation."""
        assert worker.form is not None
        generation, worker.form, worker.doing = worker.form.generation, None, "waiting"
        self.say(
            worker.agent,
            p.FormFailed(
                wid=worker.wid,
                generation=generation,
                error=why,
                handle=worker.handle,
                lacks=lacks,
                suspect=suspect,
            ),
        )

    def form_round(self) -> None:
        """Members of a generation enter it together, or notice that one is missing."""
        if not self.forms:
            return
        form = self.forms[-1]
        members = [self.worker(wid) for wid in form.members]
        if not all(self.reachable(worker) for worker in members):
            return
        entering = [worker for worker in members if worker.form is form]
        if not all(worker.alive for worker in members):
            for worker in entering:
                if worker.alive and not worker.hung:
                    self.fail_forming(worker, "a peer vanished")
        elif all(worker.form is form or worker.generation == form.generation for worker in members):
            for worker in entering:
                if worker.wid not in self.held and not worker.hung:
                    self.enter(worker, form)

    def enter(self, worker: SimulatedWorker, form: p.Form) -> None:
        """A worker becomes a member and holds the agreed state."""
        if worker.wid in form.receivers:
            worker.base, worker.dirty = form.digest.rpartition(":")[0], False
        else:
            assert not worker.dirty
            assert worker.digest == form.digest, "a donor does not hold the agreed state"
        rank = form.members.index(worker.wid)
        if str(rank) in form.rank_state:
            address, name = form.rank_state[str(rank)]
            assert address in {agent.address for agent in self.agents.values() if agent.connected}
            assert name.startswith(("rank/", "snapshot/"))
            if self.records_missing and name.startswith("rank/"):
                self.fail_forming(worker, "it is not there", lacks="record")
                return
            if form.source == "snapshot" and form.start_step in self.snapshots_missing:
                self.fail_forming(worker, "it is not there", lacks="snapshot")
                return
        if worker.wid in self.raising_on_entry:
            self.fail_forming(worker, "ValueError: cannot load", suspect=worker.wid)
            return
        worker.generation, worker.form, worker.doing = form.generation, None, "training"
        worker.committed = worker.entry = form.start_step
        assert worker.digest == form.digest
        worker.told_resumed, worker.prove = False, form.prove
        worker.quiet_since = self.now
        self.say(
            worker.agent,
            p.Formed(wid=worker.wid, generation=form.generation, step=form.start_step),
        )
        if form.generation == 1:
            self.take_snapshot(worker)

    def take_snapshot(self, worker: SimulatedWorker, digest: str | None = None) -> None:
        """A worker leaves a snapshot and says so."""
        members = self.forms[-1].members
        rank = members.index(worker.wid)
        self.saved[worker.digest] = worker.base
        taken = p.SnapshotTaken(
            wid=worker.wid,
            rank=rank,
            committed=worker.committed,
            digest=worker.digest if digest is None else digest,
            payload=rank in (0, len(members) - 1),
            seconds=0.001,
        )
        worker.taken.append(taken)
        self.say(worker.agent, taken)

    def commit(self, worker: SimulatedWorker) -> None:
        """A worker completes one step."""
        worker.committed += 1
        worker.entry = worker.committed
        worker.quiet_since = self.now
        if not worker.told_resumed:
            worker.told_resumed = True
            self.say(
                worker.agent,
                p.Resumed(
                    wid=worker.wid,
                    generation=worker.generation,
                    committed=worker.committed,
                    ago=0.0,
                    digest=worker.digest if worker.prove else "",
                ),
            )
        if self.snapshots_every and worker.committed % self.snapshots_every == 0:
            self.take_snapshot(worker)
        if worker.committed == self.steps:
            self.say_done(worker)

    def say_done(self, worker: SimulatedWorker) -> None:
        """A worker has no step left."""
        worker.doing = "done"
        self.say(
            worker.agent,
            p.Done(
                wid=worker.wid,
                generation=worker.generation,
                committed=worker.committed,
                digest=worker.digest,
                handle=worker.handle,
            ),
        )

    def step_round(self) -> None:
        """Members in training commit one step together, or block because one is missing."""
        members = self.members
        training = [w for w in members if w.doing == "training" and w.alive]
        for worker in training:
            halt = worker.halt
            due = halt is not None and halt.generation > worker.generation
            if halt is not None and due and worker.committed >= (halt.at_step or 0):
                self.propose(worker)
            elif worker.committed == self.steps:
                self.say_done(worker)
        training = [worker for worker in training if worker.doing == "training"]
        if not all(self.reachable(worker) for worker in members):
            return
        if self.raise_in_step(training):
            return
        complete = len(training) == len(members) and not any(w.hung for w in training)
        same = {worker.generation for worker in training} == {self.forms[-1].generation}
        if complete and same:
            for worker in training:
                self.commit(worker)
        elif not all(worker.alive for worker in members):
            for worker in training:
                if not worker.hung:
                    self.fail_step(worker, "collective", dirty=False)

    def raise_in_step(self, training: list[SimulatedWorker]) -> bool:
        """Carry out what ``raising`` plans."""
        if not training or training[0].committed not in self.raising:
            return False
        dirty = self.raising[training[0].committed]
        victims = (
            [w for w in training if w.wid in self.raised_on] if self.raised_on else training[:1]
        )
        for worker in victims:
            self.fail_step(worker, "step", dirty=dirty)
        return bool(victims)

    def fail_step(self, worker: SimulatedWorker, origin: str, *, dirty: bool) -> None:
        """The step of one worker raises."""
        worker.doing, worker.dirty = "blocked", worker.dirty or dirty
        self.say(
            worker.agent,
            p.StepFailed(
                wid=worker.wid,
                generation=worker.generation,
                step=worker.committed,
                error="it raised",
                origin=origin,
            ),
        )

    def start_round(self) -> None:
        """Workers that were launched in an earlier round reach ``Job.train``."""
        for worker in self.all_workers:
            if worker.alive and not worker.ready and worker.born < self.now:
                worker.ready, worker.doing = True, "waiting"
                self.say(worker.agent, p.Joined(wid=worker.wid, torch="2.15.0"))
                self.say(
                    worker.agent,
                    p.Ready(
                        wid=worker.wid,
                        handle=worker.handle,
                        steps=self.steps,
                        digest=worker.digest,
                        address=f"{worker.agent}:{5000 + worker.wid}",
                    ),
                )

    # --- time --------------------------------------------------------------------------------

    def round(self) -> None:
        """Let ``ROUND`` seconds pass: starts, forming, one step, a beat of each agent, a tick."""
        self.now += ROUND
        self.obey_leases()
        if self.starting_allowed:
            self.start_round()
        self.pump()
        self.form_round()
        self.pump()
        if self.forms:
            self.step_round()
        for name, agent in self.agents.items():
            rows = [self.progress(w) for w in agent.running.values() if w.alive and w.ready]
            self.say(name, p.Beat(sent=self.now, workers=rows))
        self.pump()
        if self.coordinator_up:
            self.job.tick(self.now)
        self.pump()

    def progress(self, worker: SimulatedWorker) -> list[Any]:
        """What the agent reads of a worker."""
        victim = worker.doing == "training" and not worker.hung
        doing = {
            "training": Doing.COLLECTIVE if victim else Doing.STEP,
            "forming": Doing.FORMING,
        }.get(worker.doing, Doing.WAITING)
        row = p.Progress(
            wid=worker.wid,
            generation=worker.generation,
            step=worker.committed,
            committed=worker.committed,
            phase=int(doing),
            age=max(0.0, self.now - worker.quiet_since) if worker.doing == "training" else 0.0,
            side_age=0.0,
            sequence=2 * worker.committed + int(victim),
            state="S",
            cpu=False,
            step_seconds=ROUND if worker.generation else 0.0,
            busy_seconds=0.0,
        )
        return list(row)

    def rounds(self, count: int) -> None:
        """Let some rounds pass."""
        for _ in range(count):
            self.round()

    def until(self, reached: Callable[[], bool], limit: int = 600) -> None:
        """Let rounds pass until something holds; it must within ``limit`` rounds."""
        for _ in range(limit):
            if reached():
                return
            self.round()
        raise AssertionError(f"not reached: phase {self.job.phase}, {self.events[-6:]}")

    def until_phase(self, phase: Phase) -> None:
        """Let rounds pass until the job is in ``phase``."""
        self.until(lambda: self.job.phase is phase)

    def until_step(self, count: int) -> None:
        """Let rounds pass until every member has committed ``count`` steps."""
        self.until(lambda: bool(self.forms) and all(w.committed >= count for w in self.members))

    def until_over(self) -> None:
        """Let rounds pass until the job has ended."""
        self.until(lambda: self.finished or self.abort is not None)

    # --- what must always hold ---------------------------------------------------------------

    def check(self, form: p.Form) -> None:
        """Refuse a Form that could let two generations talk, or lose a rank."""
        assert len(set(form.members)) == len(form.members), "a worker has two ranks"
        assert len(form.handles) == len(form.members)
        for wid in form.members:
            worker = self.worker(wid)
            known = self.job.workers[wid]
            assert worker.ready, "a worker that is not ready became a member"
            assert not known.gone, "a worker that is known to be gone became a member"
            assert not known.fencing, "a worker that is being fenced became a member"
        if not self.forms:
            return
        before = self.forms[-1]
        assert form.generation > before.generation, "generations do not increase"
        for wid in before.members:
            if wid not in form.members:
                assert not self.worker(wid).alive, f"worker {wid} was left out and lives"
                assert self.job.workers[wid].gone, f"the exit of worker {wid} was not seen"
            else:
                proposed = self.worker(wid).proposed
                assert proposed == form.generation, f"worker {wid} has not left its generation"
        if form.receivers:
            assert form.donors, "receivers have nobody to receive from"


def one_host(workers: int = 2, spares: int = 1, steps: int = 20, **more: Any) -> SimulatedJob:
    """A job on one host with a patience of one second."""
    options: dict[str, Any] = {"patience": 1.0, **more.pop("settings", {})}
    return SimulatedJob(Settings(workers=workers, spares=spares, **options), steps=steps, **more)


def several_hosts(
    hosts: int = 2, workers: int = 1, spares: int = 1, steps: int = 20, **more: Any
) -> SimulatedJob:
    """A job on several hosts with a patience of one second."""
    options: dict[str, Any] = {"patience": 1.0, "min_agents": hosts, "max_agents": hosts}
    options |= more.pop("settings", {})
    settings = Settings(workers=workers, spares=spares, **options)
    return SimulatedJob(settings, steps=steps, hosts=hosts, **more)


# --- the simulation itself ------------------------------------------------------------------------


def test_without_faults_there_is_one_generation_and_every_step_is_done_once() -> None:
    sim = one_host(workers=3, spares=2)
    sim.until_over()
    assert sim.finished
    assert [form.members for form in sim.forms] == [[0, 1, 2]]
    assert sim.job.outcome == "completed"
    assert sim.job.final_digest == "init:20"
    assert sim.job.recoveries.count == 0


def test_ranks_of_several_hosts_follow_the_order_in_which_they_came() -> None:
    sim = several_hosts(hosts=2, workers=2, spares=1)
    sim.until_over()
    assert sim.forms[0].members == [0, 1, 3, 4]


def test_different_initial_states_become_that_of_rank_zero() -> None:
    sim = one_host(workers=3, seeded=False)
    sim.until_over()
    assert sim.finished
    assert (sim.forms[0].donors[0][0], sim.forms[0].receivers) == (0, [1, 2])
    assert sim.job.final_digest == "init0:20"


def test_the_simulation_notices_a_generation_that_is_formed_too_early() -> None:
    sim = one_host()
    sim.until_step(5)
    sim.job.outbox.append((ALL, replace(sim.forms[-1], generation=2)))
    with pytest.raises(AssertionError, match="has not left its generation"):
        sim.pump()
