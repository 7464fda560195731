"""The decisions of a job, without any input or output: messages in, messages out.

``Membership`` is the coordinator's mind. It is told what agents and workers say and what time it
is; it answers with messages to agents and with facts for the event log. Another process can take
it up (``journal``): what agents repeat in their ``Hello`` fills in the rest.

One change of members goes through these phases::

    GATHERING -> FORMING -> LIVE -> HALTING -> FORMING -> LIVE ... -> FINISHING -> ENDED

HALTING ends when every lost worker is known to be gone and every survivor has left its step and
said what it holds. Only then is the next generation formed: fence first, reconfigure after.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.decide import (
    Decision,
    Holding,
    NoCommonStateError,
    decide,
    from_first,
    outliers,
)
from keepstep.runtime.detect import StragglerWindow, Suspicion, find_stalls, worth_swapping
from keepstep.runtime.recoveries import Recoveries
from keepstep.runtime.roster import Agent, Change, Incident, Phase, Worker
from keepstep.runtime.settings import START_ALLOWANCE, Settings, Times
from keepstep.runtime.snapshots import SnapshotRegistry

ALL = "*"  # recipient: every connected agent
CRASH_LOOP = 3  # times that one step may fail after its generation was formed
FORM_ATTEMPTS = 6  # attempts in a row to form a generation
START_FAILURES = 3  # workers in a row that may die before they are ready
PEER_GRACE = 1.0  # seconds that a lost connection may stay without a lost rank to explain it
BOUNDARY_STEPS = 2  # a planned change happens at least this many steps ahead of the newest
FENCE_MARGIN = 0.5  # seconds that a cut-off agent gets to kill its workers after its lease ended
RECALL_LIMIT = 2.0  # seconds to wait for what a mirror kept of a lost host
STALL_LOOK = 1e-5  # seconds a member between two looks: about a tenth of the time at most
STRAGGLER_LOOK = 1e-4  # the same: this look is longer and not urgent
SWAP_COST = 1.0  # seconds: assumed cost of a swap before one was measured


@dataclass(slots=True)
class Membership:
    """The state of one job; see the module's text."""

    settings: Settings
    store: str
    phase: Phase = Phase.GATHERING
    generation: int = 0
    slots: list[int | None] = field(default_factory=list)  # worker of each place, None: empty
    owners: list[int | None] = field(default_factory=list)  # who had each place before the change
    start_step: int = 0
    steps: int = 0
    next_wid: int = 0
    agents: dict[str, Agent] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    change: Change | None = None
    incident: Incident | None = None  # open from the first fault until a generation lives
    job_name: str = "job"  # in the names of incidents
    fired: set[int] = field(default_factory=set)
    failures_at: dict[int, int] = field(default_factory=dict)  # step -> times it failed when live
    raised_at: dict[int, int] = field(default_factory=dict)  # worker -> step at which it raised
    start_failures: int = 0
    generations: list[list[int]] = field(default_factory=list)  # [number, start step, world size]
    outcome: str = ""
    exit_code: int = 0
    why: str = ""
    final_digest: str = ""
    lived: bool = False  # a generation was complete once: there is something to lose
    form_failures: int = 0  # attempts to form in a row that came to nothing
    step_seconds: list[float] = field(default_factory=list)
    snapshots: SnapshotRegistry = field(default_factory=SnapshotRegistry)
    recoveries: Recoveries = field(default_factory=Recoveries)
    stragglers: StragglerWindow = field(default_factory=StragglerWindow)
    swap_cost: float = SWAP_COST
    sample_rows: list[list[int]] = field(default_factory=list)
    agents_reported: set[str] = field(default_factory=set)
    form_began: float = 0.0
    failing_step: int = 0
    _failed_since: float | None = None
    outbox: list[tuple[str, p.Message]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    injections: list[str] = field(default_factory=list)  # specifications, for the event log
    changed: bool = False  # must be written down before the outbox is sent
    now: float = 0.0
    _slots_ranked: list[int | None] = field(default_factory=list)  # for which _ranks holds
    _ranks: dict[int, int] = field(default_factory=dict)  # worker -> rank
    _awaited: int = -1  # a member that the present phase waited for when we last looked
    _stall_reported: bool = False  # a beat had a row that no look has considered yet
    _next_stall_look: float = 0.0
    _next_straggler_look: float = 0.0

    # --- small questions --------------------------------------------------------------------

    @property
    def times(self) -> Times:
        """Timeouts that follow from patience and the measured step time."""
        return Times.derive(self.settings.patience, self.median_step)

    @property
    def median_step(self) -> float:
        """Median duration of the last steps, 0.0 before the first."""
        return statistics.median(self.step_seconds) if self.step_seconds else 0.0

    @property
    def members(self) -> list[int]:
        """Workers of the generation in order of rank."""
        return list(self.ranks)

    @property
    def ranks(self) -> dict[int, int]:
        """Worker -> rank, in order of rank. Good until the slots are another list."""
        if self._slots_ranked is not self.slots:
            members = [wid for wid in self.slots if wid is not None]
            self._slots_ranked = self.slots
            self._ranks = {wid: rank for rank, wid in enumerate(members)}
        return self._ranks

    def rank_of(self, wid: int) -> int | None:
        """Return the rank of a member."""
        return self.ranks.get(wid)

    def _alive(self, wids: Iterable[int]) -> list[int]:
        return [wid for wid in wids if not self.workers[wid].gone]

    def _ready_spares(self) -> list[int]:
        taken = self.ranks
        return [
            worker.wid
            for worker in self.workers.values()
            if worker.ready
            and not (worker.gone or worker.fencing)
            and worker.wid not in taken
            and self.agents[worker.agent].connected
        ]

    def _starting(self) -> list[int]:
        return [
            worker.wid
            for worker in self.workers.values()
            if not worker.gone and worker.ready is None and not worker.fencing
        ]

    # --- outputs ------------------------------------------------------------------------------

    def _send(self, agent: str, message: p.Message) -> None:
        self.outbox.append((agent, message))

    def _event(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, "generation": self.generation, **facts})

    def _who(self, wid: int) -> dict[str, Any]:
        """Return the facts by which a person finds a worker."""
        worker = self.workers[wid]
        agent = self.agents.get(worker.agent)
        return {
            "worker": wid,
            "rank": self.rank_of(wid),
            "pid": worker.pid or None,
            "host": agent.host if agent is not None else None,
        }

    # --- agents -------------------------------------------------------------------------------

    def on_hello(self, hello: p.Hello, now: float) -> None:
        """An agent came (back); what it repeats is taken as if it were new."""
        self.now = now
        known = self.agents.get(hello.agent)
        if known is None and len(self.agents) >= self.settings.max_agents:
            why = f"this job takes {self.settings.max_agents} agents and has them"
            self._send(hello.agent, p.Abort(why=why, code=2))
            return
        agent = Agent(
            hello.agent,
            hello.host,
            hello.address,
            hello.workers,
            hello.workers + hello.spares,
            True,
            now,
        )
        self.agents[hello.agent] = agent
        self._event(
            "agent_joined" if known is None else "agent_back",
            agent=hello.agent,
            host=hello.host,
            workers=hello.workers,
            spares=hello.spares,
        )
        times = self.times
        welcome = p.Welcome(
            sent=hello.sent,
            patience=times.patience,
            world_size=self.settings.world_size,
            store=self.store,
            injections=self.injections,
        )
        self._send(hello.agent, welcome)
        self._repeat(hello)
        self._tell_end(hello.agent)
        self._go_on()
        self._fill(agent, set(hello.wids))
        self.changed = True

    def _tell_end(self, agent: str) -> None:
        """Tell an agent that comes (back) late what the others were told."""
        if self.phase is Phase.LIVE:
            every, ahead = self.snapshots.interval, self._boundary()
            self._send(agent, p.SnapshotEvery(every=every, from_step=ahead))
        elif self.phase is Phase.FINISHING:
            self._send(agent, p.Finish())
        elif self.phase is Phase.ENDED:
            self._send(agent, p.Abort(why=self.why, code=self.exit_code))

    def _fill(self, agent: Agent, known: set[int]) -> None:
        """Have the agent start what it was told to start and did not hear, and what is missing."""
        if self.phase in (Phase.FINISHING, Phase.ENDED):
            return
        alive = [w for w in self.workers.values() if w.agent == agent.name and not w.gone]
        unheard = [worker for worker in alive if worker.wid not in known]
        if unheard:
            self._send(
                agent.name,
                p.Launch(
                    wids=[worker.wid for worker in unheard],
                    ranks=[worker.first_rank for worker in unheard],
                ),
            )
        if len(alive) < agent.slots:
            self._launch(agent.name, agent.slots - len(alive))

    def _repeat(self, hello: p.Hello) -> None:
        """Take in what an agent knows of its workers after a loss of contact."""
        told = set()
        for body in hello.standing:
            message = p.from_dict(body)
            wid = getattr(message, "wid", None)
            if not isinstance(wid, int):
                continue
            if wid < 0:
                self._take(hello.agent, message)
                continue
            told.add(wid)
            self.next_wid = max(self.next_wid, wid + 1)
            if not self.workers.setdefault(wid, Worker(wid, hello.agent, self.now)).gone:
                self._take(hello.agent, message)
        for worker in self.workers.values():
            if worker.agent == hello.agent and not worker.gone and worker.fencing:
                self._send(hello.agent, p.Fence(wid=worker.wid, why=worker.fencing))
        if self.phase is Phase.FORMING:
            self._begin_change("an agent came back during a recovery")
        elif self.phase is Phase.HALTING and self.change is not None:
            wids = self._alive(self.members)
            halt = p.Halt(generation=self.generation, wids=wids, at_step=self.change.at_step)
            self._send(hello.agent, halt)

    def on_disconnect(self, agent: str, now: float) -> None:
        """The connection to an agent ended; its lease decides what that means."""
        self.now = now
        if agent in self.agents and self.agents[agent].connected:
            self.agents[agent].connected = False
            self.agents[agent].heard = now
            self._event(
                "agent_lost_contact",
                agent=agent,
                host=self.agents[agent].host,
                lease_s=round(self.times.lease, 3),
            )

    def _launch(self, agent: str, count: int) -> None:
        wids = list(range(self.next_wid, self.next_wid + count))
        self.next_wid += count
        ranks = self._first_ranks(agent, wids)
        for wid, rank in zip(wids, ranks, strict=True):
            self.workers[wid] = Worker(wid, agent, self.now, first_rank=rank)
        self._send(agent, p.Launch(wids=wids, ranks=ranks))
        self.changed = True

    def _first_ranks(self, agent: str, wids: list[int]) -> list[int]:
        """Give the ranks of the first generation to the first workers of each agent."""
        world_size = self.settings.world_size
        if self.generation:
            return [world_size + wid for wid in wids]
        mine = sum(w.agent == agent and w.wid in self.ranks for w in self.workers.values())
        slots = self.slots + [None] * (world_size - len(self.slots))
        free = [place for place, wid in enumerate(slots) if wid is None]
        ranks = free[: min(self.agents[agent].ranks - mine, len(wids))]
        for place, wid in zip(ranks, wids, strict=False):
            slots[place] = wid
        self.slots = slots
        return ranks + [world_size + wid for wid in wids[len(ranks) :]]

    # --- messages -----------------------------------------------------------------------------

    def on_message(self, agent: str, message: p.Message, now: float) -> None:
        """Take one message of an agent."""
        self.now = now
        if agent not in self.agents:
            return  # it counts as gone; it has to introduce itself anew
        self.agents[agent].heard = now
        self._take(agent, message)
        if not isinstance(message, p.Beat) or self.phase is not Phase.LIVE:
            self._go_on()  # else the next tick does: beats are many, what they allow is rare

    def _take(self, agent: str, message: p.Message) -> None:
        if isinstance(message, p.Beat):
            self._on_beat(message)
            self._send(agent, p.Lease(sent=message.sent, patience=self.times.patience))
        elif isinstance(message, p.Exited):
            self._on_exited(message)
        elif isinstance(message, p.Goodbye):
            self._agent_is_gone(agent, "it said goodbye")
        elif isinstance(message, p.Kept):
            self._on_kept(message)
        elif isinstance(message, p.Judged):
            self._on_judged(message)
        elif isinstance(message, p.SampleRows):
            self.sample_rows += message.rows
            self.agents_reported.add(agent)
        elif isinstance(message, p.Fired) and message.wid < 0:
            if message.index not in self.fired:
                self._event("fault_injected", target="coordinator", step=message.step)
            self.fired.add(message.index)
            self.changed = True
        elif isinstance(message, p.Report) and message.wid in self.workers:
            handler = getattr(self, f"_on_{type(message).__name__.lower()}")
            handler(self.workers[message.wid], message)

    def _on_launched(self, worker: Worker, message: p.Launched) -> None:
        worker.pid = message.pid

    def _on_joined(self, worker: Worker, message: p.Joined) -> None:
        worker.joined = True
        self._event(
            "worker_joined", **self._who(worker.wid), agent=worker.agent, torch=message.torch
        )

    def _on_ready(self, worker: Worker, message: p.Ready) -> None:
        worker.joined, worker.ready, worker.handle = True, message, message.handle
        self.steps = message.steps
        self.start_failures = 0
        self._event(
            "worker_ready",
            **self._who(worker.wid),
            agent=worker.agent,
            after_s=round(self.now - worker.launched, 3),
        )

    def _on_fired(self, worker: Worker, message: p.Fired) -> None:
        if message.index in self.fired:
            return  # repeated after a loss of contact
        self.fired.add(message.index)
        self.changed = True
        self.recoveries.on_fired(worker.wid, self.now - message.ago)
        self._event(
            "fault_injected",
            **self._who(worker.wid),
            step=message.step,
            injection=message.index,
            spec=dict(enumerate(self.injections)).get(message.index),
        )

    def _on_formed(self, worker: Worker, message: p.Formed) -> None:
        if message.generation == self.generation:
            worker.formed = message.generation
            worker.proposal = worker.failed = worker.done = None
            self._event(
                "member_formed",
                worker=worker.wid,
                rank=self.rank_of(worker.wid),
                step=message.step,
                **{f"{k}_s": v for k, v in message.seconds.items()},
            )

    def _on_formfailed(self, worker: Worker, message: p.FormFailed) -> None:
        worker.handle = message.handle
        if message.generation == self.generation and self.phase is Phase.FORMING:
            self._event("form_failed", **self._who(worker.wid), error=message.error[:300])
            self._begin_change(f"worker {worker.wid} could not enter: {message.error[:80]}")

    def _on_resumed(self, worker: Worker, message: p.Resumed) -> None:
        worker.proven = True
        if message.generation != self.generation:
            return
        cost = self.recoveries.on_resumed(self.now - message.ago, full=self._is_full)
        if cost is not None:
            self.swap_cost = cost
            self.changed = True  # the book of faults must survive a restart of the coordinator
            self._event(
                "resumed",
                step=message.committed,
                after_s=round(cost, 4),
                world_size=len(self.members),
                wanted=self.settings.world_size,
                **self.recoveries.last_healed(self.members),
            )

    def _on_snapshottaken(self, worker: Worker, message: p.SnapshotTaken) -> None:
        if self.rank_of(worker.wid) != message.rank:
            return
        address = self.agents[worker.agent].address
        self.snapshots.note(message, address)
        outvoted = self.snapshots.judge(message.committed, self.members)
        if outvoted is not None and self.phase is Phase.LIVE:
            self._on_difference(outvoted, message.committed)
        every = self.snapshots.every(self.median_step)
        if every is not None:
            ahead = self._boundary()
            self._send(ALL, p.SnapshotEvery(every=every, from_step=ahead))

    def _on_difference(self, outvoted: tuple[int, ...], step: int) -> None:
        """Replicas differ: somebody's memory changed. Nobody's live state is used again."""
        self._event(
            "replicas_differ",
            step=step,
            outvoted=list(outvoted),
            ranks=[self.rank_of(wid) for wid in outvoted],
        )
        for wid in outvoted:
            evidence = "its replica differs from the others'"
            self._record_fault(wid, "corrupt", "replace", self.now, evidence=evidence)
            self._fence(wid, evidence)
        if not outvoted:
            evidence = "replicas differ and no majority says whose is right"
            self._record_fault(None, "corrupt", "retry", self.now, evidence=evidence)
        self._begin_change("replicas differ", distrust=True)

    def _on_done(self, worker: Worker, message: p.Done) -> None:
        worker.handle = message.handle
        if message.generation == self.generation:
            worker.done = message
            worker.proven = True

    def _on_proposal(self, worker: Worker, message: p.Proposal) -> None:
        worker.handle = message.handle
        worker.proposal = message

    def _on_stepfailed(self, worker: Worker, message: p.StepFailed) -> None:
        if message.generation != self.generation or self.phase not in (Phase.LIVE, Phase.FORMING):
            return
        worker.failed = message
        rank = self.rank_of(worker.wid)
        if message.origin == "collective":
            return  # a victim; the lost rank that explains it is on its way, or _tick acts
        fatal = message.origin in ("device", "memory")
        again = self.raised_at.get(worker.wid) == message.step
        self._event(
            "step_failed",
            **self._who(worker.wid),
            step=message.step,
            error=message.error[:300],
            origin=message.origin,
            action="replace" if fatal or again else "retry",
        )
        self.raised_at[worker.wid] = message.step
        fault = {"memory": "oom", "device": "device"}.get(message.origin, "raise")
        if fatal or again:
            self._record_fault(worker.wid, fault, "replace", self.now, evidence=message.error)
            self._fence(worker.wid, f"its step raised: {message.error[:80]}")
        else:
            self._record_fault(worker.wid, fault, "retry", self.now, evidence=message.error)
        why = f"rank {rank} raised in step {message.step}: {message.error[:120]}"
        self._begin_change(why, step=message.step)

    # --- losses -------------------------------------------------------------------------------

    def _on_exited(self, message: p.Exited) -> None:
        worker = self.workers.get(message.wid)
        if worker is None or worker.gone:
            return
        rank = self.rank_of(worker.wid)
        worker.gone, worker.known, worker.exit_code = True, message.entry, message.code
        worker.joined = worker.joined or message.joined
        if self.phase in (Phase.FINISHING, Phase.ENDED):
            return
        self.changed = True
        self._event(
            "worker_exited",
            **self._who(worker.wid),
            fault=message.fault,
            code=message.code,
            step=None if rank is None else max(self.start_step, message.committed),
            fenced=worker.fencing or None,
            ready=worker.ready is not None,
            spares=sorted(self._ready_spares()),
            on_loss=self.settings.on_loss,
        )
        if self.generation == 0:
            self._give_up_place(worker.wid)
            self._outsider_lost(worker, message)
        elif rank is not None:
            self._member_lost(worker, message)
        else:
            self._outsider_lost(worker, message)
        self._replace_process(worker)

    def _give_up_place(self, wid: int) -> None:
        """Before the first generation a place goes to the next worker that is started."""
        self.slots = [None if other == wid else other for other in self.slots]

    def _member_lost(self, worker: Worker, message: p.Exited) -> None:
        if not worker.fencing:
            since = self.now - message.ago
            self._record_fault(
                worker.wid,
                message.fault,
                "replace",
                since,
                message.committed,
                _how_it_ended(message.code),
            )
            why = f"worker {worker.wid} is gone: {message.fault} {message.code}"
            self._begin_change(why, step=message.committed)

    def _outsider_lost(self, worker: Worker, message: p.Exited) -> None:
        if worker.ready is not None:
            self.recoveries.spare_lost()
            return
        if worker.fencing:
            return
        self.start_failures += 1
        if not worker.joined and message.code == 0:
            self._abort(
                f"the script ended without calling keepstep.join() (worker {worker.wid}). Add "
                "`job = keepstep.join()` and `job.train(step, state, steps=N)` to it",
                2,
            )
        elif self.generation == 0 or self.start_failures >= START_FAILURES:
            how = _how_it_ended(message.code)
            self._abort(
                f"worker {worker.wid} {how} before it reached Job.train; its output above says why",
                1,
            )

    def _replace_process(self, worker: Worker) -> None:
        agent = self.agents[worker.agent]
        busy = sum(
            1 for other in self.workers.values() if other.agent == worker.agent and not other.gone
        )
        if self.phase is not Phase.ENDED and agent.connected and busy < agent.slots:
            self._launch(worker.agent, 1)

    def _agent_is_gone(self, name: str, why: str) -> None:
        """No process of this agent can still compute: it fenced them or its lease ran out."""
        mirror = self._mirror_of(name)
        agent = self.agents.pop(name, None)
        if agent is None:
            return
        self._event("agent_gone", agent=name, host=agent.host, why=why)
        if self.phase in (Phase.FINISHING, Phase.ENDED):
            return
        self.snapshots.rehome(agent.address, mirror.address if mirror is not None else None)
        lost = [w for w in self.workers.values() if w.agent == name and not w.gone]
        for worker in lost:
            worker.gone = True
        self._look_for_records(agent, mirror)
        members = [worker.wid for worker in lost if self.rank_of(worker.wid) is not None]
        if self.generation == 0:
            for wid in members:
                self._give_up_place(wid)
            members = []
        for wid in members:
            self._record_fault(wid, "partition", "replace", agent.heard, evidence=why)
        if members:
            self._begin_change(f"host {agent.host} is cut off or down")
        self.changed = True

    def _look_for_records(self, lost: Agent, mirror: Agent | None) -> None:
        """Find out who still has the records that lay in the vault of a lost host."""
        there = [
            worker
            for worker in self.workers.values()
            if worker.gone and (worker.agent == lost.name or worker.keeper == lost.address)
        ]
        for worker in there:
            worker.known, worker.keeper, worker.recalled = -1, "", None
            if mirror is not None:
                worker.keeper, worker.recalled = mirror.address, self.now
        if mirror is not None:
            self._send(mirror.name, p.Recall(wids=[worker.wid for worker in there]))

    def _mirror_of(self, name: str) -> Agent | None:
        """Return the agent that mirrors the records of agent ``name``: the next in the ring."""
        ring = [agent for agent in self.agents if agent == name or self.agents[agent].connected]
        if name not in ring or len(ring) < 2:
            return None
        return self.agents[ring[(ring.index(name) + 1) % len(ring)]]

    def _by_agent(self, wids: Iterable[int]) -> dict[str, list[int]]:
        """Return the workers of each agent that is not gone."""
        found: dict[str, list[int]] = {}
        for wid in wids:
            name = self.workers[wid].agent
            if name in self.agents:
                found.setdefault(name, []).append(wid)
        return found

    def _mirror_rows(self) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        wids_of = self._by_agent(self.members)
        connected = [name for name, agent in self.agents.items() if agent.connected]
        following = dict(zip(connected, connected[1:] + connected[:1], strict=True))
        for name, wids in wids_of.items():
            if name not in following:  # out of contact: it is in the ring of its own only
                mirror = self._mirror_of(name)
                after = mirror.name if mirror is not None else name
            else:
                after = following[name]
            if after != name:
                rows[after] = [self.agents[name].address, wids]
        return rows

    def _on_kept(self, message: p.Kept) -> None:
        worker = self.workers.get(message.wid)
        if worker is not None and worker.recalled is not None:
            worker.recalled, worker.known = None, message.entry
            self.changed = True

    def _record_fault(
        self,
        wid: int | None,
        fault: str,
        action: str,
        since: float,
        reached: int = 0,
        evidence: str = "",
    ) -> None:
        rank = None if wid is None else self.rank_of(wid)
        step = max([reached, self.start_step, *self._committed_counts()])
        if self.incident is None:
            self.incident = Incident(self.generation, step, self._member_rows())
        self.incident.faults.append(
            {"rank": rank, "worker": wid, "fault": fault, "evidence": evidence}
        )
        self.recoveries.begin(
            wid=wid, rank=rank, fault=fault, action=action, step=step, since=since, now=self.now
        )

    def _member_rows(self) -> list[list[Any]]:
        rows = []
        for wid, rank in self.ranks.items():
            agent = self.workers[wid].agent
            host = self.agents[agent].host if agent in self.agents else ""
            rows.append([rank, wid, agent, host])
        return rows

    def _close_incident(self, outcome: str) -> None:
        incident, self.incident = self.incident, None
        if incident is None or not self.agents:
            return
        first = incident.faults[0]
        who = "unnamed" if first["rank"] is None else f"rank-{first['rank']}"
        name = f"{self.job_name}-generation-{incident.generation:04d}-{first['fault']}-{who}"
        message = p.Incident(
            name=name,
            generation=incident.generation,
            step=incident.step,
            members=incident.members,
            faults=incident.faults,
            outcome=outcome,
            lead=next(iter(self.agents)),
        )
        self._send(ALL, message)

    def _on_judged(self, message: p.Judged) -> None:
        self._event(
            "verdict",
            incident=message.incident,
            folder=message.folder,
            verdict=message.outcome,
            ranks=message.ranks,
            fault=message.fault,
            headline=message.headline,
            after_s=round(message.seconds, 3),
        )

    def _committed_counts(self) -> list[int]:
        found = []
        for wid in self.members:
            worker = self.workers[wid]
            if worker.progress is not None and worker.progress.generation == self.generation:
                found.append(worker.progress.committed)
            if worker.proposal is not None:
                found.append(worker.proposal.committed)
        return found

    def _fence(self, wid: int, why: str) -> None:
        worker = self.workers[wid]
        if not worker.gone and not worker.fencing:
            worker.fencing = why
            self._send(worker.agent, p.Fence(wid=wid, why=why))
            self._event("fence", **self._who(wid), why=why)

    # --- progress -----------------------------------------------------------------------------

    def _on_beat(self, beat: p.Beat) -> None:
        patience = self.times.patience
        for row in beat.workers:
            if len(row) != len(_PROGRESS_FIELDS):
                raise p.ProtocolError(f"a row of progress has {len(row)} fields")
            progress = p.Progress(**dict(zip(_PROGRESS_FIELDS, row, strict=True)))
            worker = self.workers.get(progress.wid)
            if worker is None or worker.gone:
                continue
            before = worker.progress
            worker.progress = progress
            if (
                progress.generation == self.generation
                and progress.step_seconds > 0
                and (before is None or before.committed != progress.committed)
            ):
                self.step_seconds.append(progress.step_seconds)
                del self.step_seconds[:-64]
                self.stragglers.add(progress)
            self._stall_reported |= progress.age >= patience
        if self.phase is Phase.LIVE:
            self._look_around()

    def _look_around(self) -> None:
        """Look at all members, a large job less often: there are many beats and many members."""
        size = len(self.ranks)
        if self._stall_reported and self.now >= self._next_stall_look:
            self._stall_reported = False
            self._next_stall_look = self.now + STALL_LOOK * size
            self._look_for_stalls()
        if self.now >= self._next_straggler_look:
            self._next_straggler_look = self.now + STRAGGLER_LOOK * size
            self._notice_unreported_steps()
            self._look_for_stragglers()

    def _notice_unreported_steps(self) -> None:
        """Close a recovery whose end nobody could report: the coordinator was away."""
        if self.recoveries.open and max(self._committed_counts(), default=0) > self.start_step:
            self.recoveries.on_resumed(self.now, full=self._is_full)
            self.changed = True

    @property
    def _is_full(self) -> bool:
        return len(self.members) == self.settings.world_size

    def _live_progress(self) -> list[p.Progress]:
        return [
            worker.progress
            for worker in (self.workers[wid] for wid in self.members)
            if worker.progress is not None
            and worker.failed is None
            and worker.progress.generation == self.generation
        ]

    def _look_for_stalls(self) -> None:
        members = self._live_progress()
        unproven = frozenset(m.wid for m in members if not self.workers[m.wid].proven)
        for suspicion in find_stalls(members, self.times.patience, unproven):
            self._on_suspicion(suspicion)

    def _on_suspicion(self, suspicion: Suspicion) -> None:
        self._event(
            "stall",
            **({} if suspicion.wid is None else self._who(suspicion.wid)),
            step=self.start_or_committed(),
            fault=suspicion.fault,
            age_s=round(suspicion.age, 3),
            evidence=suspicion.evidence,
        )
        since = self.now - suspicion.age
        if suspicion.wid is None:
            self._record_fault(None, "unknown", "retry", since, evidence=suspicion.evidence)
            self._begin_change(suspicion.evidence)
            return
        self._record_fault(
            suspicion.wid, suspicion.fault, "replace", since, evidence=suspicion.evidence
        )
        self._fence(suspicion.wid, f"{suspicion.fault}: {suspicion.evidence}")
        self._begin_change(f"worker {suspicion.wid}: {suspicion.fault}")

    def _look_for_stragglers(self) -> None:
        if self.phase is not Phase.LIVE or self.change is not None or not self._ready_spares():
            return
        straggler = self.stragglers.find(self.members)
        newest = max(self._committed_counts(), default=self.start_step)
        if straggler is None or not worth_swapping(straggler, self.steps - newest, self.swap_cost):
            return
        gain = straggler.gain_per_step
        self._event(
            "straggler",
            **self._who(straggler.wid),
            step=newest,
            score=round(straggler.score, 3),
            gain_per_step_s=round(gain, 4),
            steps_left=self.steps - newest,
            cost_s=round(self.swap_cost, 3),
        )
        evidence = f"its own part of a step takes {straggler.score:.1f} times the others'"
        self._record_fault(straggler.wid, "slow", "replace", self.now, evidence=evidence)
        self.recoveries.expect_gain(self.median_step, straggler.score)
        self._plan_change(drain=straggler.wid)

    # --- the change of members ----------------------------------------------------------------

    def _boundary(self) -> int:
        newest = max(self._committed_counts(), default=self.start_step)
        margin = int(0.5 / self.median_step) if self.median_step else 0
        return newest + max(BOUNDARY_STEPS, margin) + 1

    def _plan_change(self, drain: int | None = None) -> None:
        at_step = min(self._boundary(), self.steps)
        self.change = Change(self.now, drain=drain, at_step=at_step)
        self._halt()

    def _begin_change(self, why: str, *, step: int = 0, distrust: bool = False) -> None:
        """Stop the present generation now; what was planned or under way is superseded.

        ``step`` is the one that failed, as far as the culprit's own record tells.
        """
        if self.phase is Phase.ENDED:
            return
        if self.generation == 0:
            return  # nothing was formed yet; _go_on forms as soon as enough workers are ready
        if self.phase is Phase.HALTING and self.change and self.change.at_step is None:
            self.change.distrust |= distrust
            return
        carried = self.change.distrust if self.change else False
        if self.phase is Phase.LIVE:
            self.failing_step = max(step, self.start_or_committed())
            self.failures_at[self.failing_step] = self.failures_at.get(self.failing_step, 0) + 1
        elif self.phase is Phase.FORMING:
            self.form_failures += 1
        self.change = Change(self.now, distrust=distrust or carried)
        self._event("halt", why=why)
        self._halt()

    def start_or_committed(self) -> int:
        """Return the newest step count that any member is known to have committed."""
        return max([self.start_step, *self._committed_counts()])

    def _halt(self) -> None:
        assert self.change is not None
        self._note_owners()
        self.phase = Phase.HALTING
        self.generation += 1
        self.stragglers.clear()
        for wid in self.members:
            self.workers[wid].proposal = None
        for agent, wids in self._by_agent(self._alive(self.members)).items():
            at_step = self.change.at_step
            self._send(agent, p.Halt(generation=self.generation, wids=wids, at_step=at_step))
        self.changed = True

    def _note_owners(self) -> None:
        """Note whose records hold the per-rank state of each place."""
        if self.phase is Phase.LIVE:
            self.owners = list(self.slots)
        elif self.phase is Phase.FORMING:
            # A newcomer that got as far as to hold its rank's state has it; else who had it before.
            self.owners = [
                wid if wid is not None and self.workers[wid].formed == self.generation else owner
                for wid, owner in zip(self.slots, self.owners, strict=True)
            ]

    def _go_on(self) -> None:
        """Take every step that has become possible."""
        if self.phase is Phase.GATHERING and not self._waits():
            self._try_first_generation()
        elif self.phase is Phase.HALTING and not self._waits():
            self._try_form()
        elif self.phase is Phase.FORMING and not self._waits():
            self._try_go_live()
        if self.phase is Phase.LIVE:
            self._try_grow()
        if self.phase is Phase.LIVE and not self._waits():
            self._try_finish()

    def _waits(self) -> bool:
        """Whether the phase waits for a member.

        Asked after every message of every member, so one for whom it waits is remembered: only
        when that one has answered all others are looked at. The last is taken, because orders go
        out, and answers come, about in the order of ranks.
        """
        if self.phase is Phase.GATHERING and len(self.ranks) < self.settings.world_size:
            return True
        if self._awaited not in self.ranks or not self._owes(self._awaited):
            owing = (wid for wid in reversed(self.ranks) if self._owes(wid))
            self._awaited = next(owing, -1)
        return self._awaited >= 0

    def _owes(self, wid: int) -> bool:
        """Whether the phase cannot end before something is heard of this member."""
        worker = self.workers[wid]
        if self.phase is Phase.GATHERING:
            return worker.ready is None
        if self.phase is Phase.HALTING:
            held = worker.proposal
            if worker.gone:
                return self._is_recalled(wid)
            return bool(worker.fencing) or held is None or held.generation != self.generation
        if self.phase is Phase.FORMING:
            return worker.formed != self.generation
        return worker.done is None

    def _try_first_generation(self) -> None:
        digests = {
            wid: ready.digest
            for wid in self.members
            if (ready := self.workers[wid].ready) is not None
        }
        if len(digests) < self.settings.world_size:
            return
        self.owners = list(self.slots)
        self.generation = 1
        self._form(from_first(self.members, digests))

    def _try_form(self) -> None:
        change = self.change
        assert change is not None
        survivors = [wid for wid in self.members if not self._is_leaving(wid)]
        if any(self.workers[wid].fencing and not self.workers[wid].gone for wid in self.members):
            return
        if any(self._is_recalled(wid) for wid in self.members) or self._awaits_host():
            return
        proposals = {wid: self.workers[wid].proposal for wid in survivors}
        if any(held is None or held.generation != self.generation for held in proposals.values()):
            return
        if change.drain is not None and not self.workers[change.drain].gone:
            self._fence(change.drain, "straggler: replaced by a spare at a step boundary")
            return
        before, slots = self.slots, self._next_slots()
        if slots is None:
            return
        self.slots = slots
        decision = self._decide({w: held for w, held in proposals.items() if held is not None})
        if decision is not None and decision.suspects:
            self.slots = before  # a spare that has no part in this keeps out of it
            self._expel(decision.suspects)
        elif decision is not None:
            self._form(decision)

    def _awaits_host(self) -> bool:
        """Return whether a lost worker's records lie on a host whose lease is running out."""
        lost = [self.workers[wid] for wid in self.owners if wid is not None]
        agents = [self.agents.get(worker.agent) for worker in lost if worker.gone]
        return any(agent is not None and not agent.connected for agent in agents)

    def _is_recalled(self, wid: int) -> bool:
        since = self.workers[wid].recalled
        return since is not None and self.now - since < RECALL_LIMIT

    def _is_leaving(self, wid: int) -> bool:
        return self.workers[wid].gone or bool(self.workers[wid].fencing)

    def _next_slots(self) -> list[int | None] | None:
        """Return the worker of each place of the next generation; None: wait."""
        assert self.change is not None
        kept = [None if wid is None or self._is_leaving(wid) else wid for wid in self.slots]
        spares = sorted(self._ready_spares())
        for place, wid in enumerate(kept):
            if wid is None and spares:
                kept[place] = spares.pop(0)
        if None not in kept:
            return kept
        if self.settings.on_loss == "shrink" and any(wid is not None for wid in kept):
            empty = [place for place, wid in enumerate(kept) if wid is None]
            self.recoveries.set_action("shrink", {self.slots[place] for place in empty})
            return kept
        self._wait_for_spare()
        return None

    def _wait_for_spare(self) -> None:
        change = self.change
        assert change is not None
        if change.waiting_since is None:
            change.waiting_since = self.now
            self._event("waiting_for_spare", starting=self._starting())
            self._close_incident("no spare was ready: the job waits for one")
        waited = self.now - change.waiting_since
        bounded = self.settings.on_loss == "replace"
        if bounded and (waited > START_ALLOWANCE or not self._starting()):
            self._abort(
                "a rank was lost, no spare is ready and none is starting. Run with more --spares, "
                "with --on-loss shrink to go on with fewer ranks, or --on-loss wait",
                1,
            )

    def _decide(self, proposals: dict[int, p.Proposal]) -> Decision | None:
        """Return where to start from; None (and the job has ended) if there is nothing."""
        change = self.change
        assert change is not None
        self.lived |= any(held.committed > 0 for held in proposals.values())
        if not self.lived and not change.distrust:
            digests = {wid: held.digest for wid, held in proposals.items()}
            for wid in self.members:
                ready = self.workers[wid].ready
                digests.setdefault(wid, ready.digest if ready is not None else "")
            return from_first(self.members, digests, self._known_owners())
        try:
            decision = decide(
                members=self.members,
                owners=self._known_owners(),
                holdings={
                    wid: Holding(
                        committed=held.committed,
                        clean=held.clean,
                        digest=held.digest,
                        entry=held.entry,
                    )
                    for wid, held in proposals.items()
                    if held.member
                },
                left={wid: worker.known for wid, worker in self.workers.items() if worker.gone},
                snapshot=self.snapshots.newest(),
                distrust=change.distrust,
            )
        except NoCommonStateError as error:
            self._abort(f"no state to go on from: {error}", 1)
            return None
        if decision.source == "snapshot" and not decision.suspects:
            self._event("back_to_snapshot", step=decision.start_step, why=decision.why)
            if "differ" in decision.why:
                self.recoveries.add_unnamed_corruption(self.now, decision.start_step)
        return decision

    def _known_owners(self) -> dict[int, int]:
        """Return rank -> the worker whose records hold its per-rank state."""
        found = {}
        for place, wid in enumerate(self.slots):
            owner = self.owners[place] if place < len(self.owners) else None
            if wid is None or owner is None:
                continue
            left_something = not self.workers[owner].gone or self.workers[owner].known >= 0
            if self.lived or left_something:
                found[self.ranks[wid]] = owner
        return found

    def _expel(self, suspects: tuple[int, ...]) -> None:
        """Replace the members that the majority contradicts, then decide again."""
        assert self.change is not None
        self.change.distrust = True
        for wid in suspects:
            evidence = "its replica differs from the others'"
            self._record_fault(wid, "corrupt", "replace", self.now, evidence=evidence)
            self._fence(wid, evidence)

    def _form(self, decision: Decision) -> None:
        reached = max(self._committed_counts(), default=0)
        lost = self.recoveries.on_decision(decision.start_step, decision.source, reached)
        limit = self._crash_loop(self.failing_step)
        if limit is not None:
            self._abort(limit, 1)
            return
        self.phase = Phase.FORMING
        self.change = None
        self.start_step = decision.start_step
        members = self.members
        self.generations.append([self.generation, self.start_step, len(members)])
        self.snapshots.drop_after(decision.start_step)
        for wid in members:
            self.workers[wid].formed = 0
            self.workers[wid].done = self.workers[wid].failed = None
        form = p.Form(
            generation=self.generation,
            uuid=self.generation,
            members=members,
            handles=[self.workers[wid].handle for wid in members],
            start_step=decision.start_step,
            source=decision.source,
            donors=self._donor_rows(decision),
            receivers=list(decision.receivers),
            digest=decision.digest,
            rank_state=self._rank_rows(decision),
            snapshot_every=self.snapshots.interval,
            fired=sorted(self.fired),
            timeout=self.times.form,
            mirrors=self._mirror_rows(),
        )
        self._send(ALL, form)
        self._event(
            "form",
            start_step=self.start_step,
            members=members,
            source=decision.source,
            receivers=list(decision.receivers),
            lost_steps=lost,
        )
        self.changed = True
        self.form_began = self.now

    def _donor_rows(self, decision: Decision) -> list[list[Any]]:
        if decision.snapshot is not None:
            return [[-1, address] for address in decision.snapshot.payload]
        rows = []
        for wid in decision.donors:
            ready = self.workers[wid].ready
            if ready is not None:
                rows.append([wid, ready.address])
        return rows

    def _rank_rows(self, decision: Decision) -> dict[str, list[Any]]:
        if decision.snapshot is not None:
            count = decision.snapshot.committed
            places = decision.snapshot.ranks
            return {
                str(rank): [places[rank][0], f"snapshot/{count}/rank/{places[rank][1]}"]
                for rank in range(len(self.members))
                if rank in places
            }
        rows = {}
        for rank, source in decision.rank_sources.items():
            worker = self.workers[source.wid]
            agent = self.agents.get(worker.agent)
            address = agent.address if agent is not None else worker.keeper
            rows[str(rank)] = [address, f"rank/{source.wid}/{source.count}"]
        return rows

    def _crash_loop(self, step: int) -> str | None:
        if self.failures_at.get(step, 0) >= CRASH_LOOP:
            return (
                f"step {step} failed {CRASH_LOOP} times in a row, each time with a freshly formed "
                f"generation; the last reason: {self.recoveries.last_reason()}. The step itself is "
                "broken: look at the script and its data"
            )
        if self.form_failures >= FORM_ATTEMPTS:
            return (
                f"{FORM_ATTEMPTS} attempts in a row to form a generation failed; the last reason: "
                f"{self.recoveries.last_reason()}. See form_failed in the events"
            )
        if self.recoveries.count > self.settings.max_recoveries:
            return (
                f"{self.recoveries.count} recoveries needed, --max-recoveries is "
                f"{self.settings.max_recoveries}"
            )
        return None

    def _try_go_live(self) -> None:
        if all(self.workers[wid].formed == self.generation for wid in self.members):
            self.phase = Phase.LIVE
            self.changed = self.lived = True
            self.form_failures = 0
            self._close_incident(f"generation {self.generation} at step {self.start_step}")
            self._event(
                "live",
                world_size=len(self.members),
                wanted=self.settings.world_size,
                step=self.start_step,
                steps=self.steps,
                spares=len(self._ready_spares()),
                starting=len(self._starting()),
            )

    def _try_grow(self) -> None:
        if (
            self.change is None
            and len(self.ranks) < len(self.slots)
            and self._ready_spares()
            and (self.start_or_committed() < self.steps - BOUNDARY_STEPS)
        ):
            self._event("growing", ready=self._ready_spares())
            self._plan_change()

    def _try_finish(self) -> None:
        finished = [self.workers[wid].done for wid in self.members]
        if self.phase is not Phase.LIVE or any(done is None for done in finished):
            return
        digests = {done.wid: done.digest for done in finished if done is not None}
        outvoted = outliers(digests)
        if outvoted is not None:
            self._on_difference(outvoted, self.steps)
            return
        self.final_digest = next(iter(digests.values()))
        self.phase = Phase.FINISHING
        self.outcome = "completed"
        self._send(ALL, p.Finish())
        self._event("finish", steps=self.steps, state_sha256=self.final_digest)
        self.changed = True

    def _abort(self, why: str, code: int) -> None:
        if self.phase is Phase.ENDED:
            return
        self._close_incident(f"the job ended: {why}")
        self.phase, self.outcome, self.why, self.exit_code = Phase.ENDED, "failed", why, code
        self._event("abort", why=why, code=code)
        self._send(ALL, p.Abort(why=why, code=code))
        self.changed = True

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Act on what did not happen. Called a few times a second."""
        self.now = now
        limit = self.times.lease + FENCE_MARGIN
        for agent in list(self.agents.values()):
            if now - agent.heard > limit:
                self._agent_is_gone(agent.name, f"no news for {now - agent.heard:.1f} s")
        if self.phase is Phase.LIVE:
            self._unexplained_failures(now)
            self._look_around()
        elif self.phase is Phase.HALTING and self.change is not None:
            self._overdue_halt(now)
        elif self.phase is Phase.FORMING:
            self._overdue_form(now)
        self._go_on()

    def _unexplained_failures(self, now: float) -> None:
        failed = [wid for wid in self.members if self.workers[wid].failed is not None]
        if not failed:
            self._failed_since = None
            return
        if self._failed_since is None:
            self._failed_since = now
        if now - self._failed_since > PEER_GRACE:
            self._failed_since = None
            first = self.workers[failed[0]].failed
            assert first is not None
            self._record_fault(None, "network", "retry", now - PEER_GRACE, evidence=first.error)
            self._begin_change(f"connections broke and every process lives: {first.error[:120]}")

    def _overdue_halt(self, now: float) -> None:
        change = self.change
        assert change is not None
        limit = self.times.leave_step
        if change.at_step is not None:
            limit += 10 * self.median_step + 10 * self.times.patience
        if now - change.began <= limit:
            return
        for wid in self._alive(self.members):
            worker = self.workers[wid]
            agent = self.agents.get(worker.agent)
            if agent is None or now - agent.heard > limit:
                continue  # a host that is silent as a whole: its lease decides
            if worker.fencing or (
                worker.proposal and worker.proposal.generation == self.generation
            ):
                continue
            evidence = f"did not leave its step within {limit:.1f} s"
            self._record_fault(wid, "hang", "replace", change.began, evidence=evidence)
            self._fence(wid, evidence)
        if change.at_step is not None:
            change.at_step = None

    def _overdue_form(self, now: float) -> None:
        if now - self.form_began <= self.times.form_and_transfer:
            return
        for wid in self._alive(self.members):
            if self.workers[wid].formed != self.generation:
                evidence = "did not enter the new generation in time"
                self._record_fault(wid, "hang", "replace", self.form_began, evidence=evidence)
                self._fence(wid, evidence)
        self._begin_change("a member did not enter the new generation in time")


_PROGRESS_FIELDS = [entry.name for entry in dataclasses.fields(p.Progress)]


def _how_it_ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
