"""What the coordinator knows of a job, and small questions about it.

The decisions are functions of this in files of their own; ``membership`` says which. They leave
orders to agents in ``outbox`` and facts for the event log in ``events``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.decide import Proof
from keepstep.runtime.detect import StragglerWindow
from keepstep.runtime.pauses import Pauses
from keepstep.runtime.recoveries import Recoveries
from keepstep.runtime.roster import Agent, Change, Incident, Phase, Worker
from keepstep.runtime.settings import Settings, Times
from keepstep.runtime.snapshots import SnapshotRegistry

ALL = "*"  # recipient: every connected agent
BOUNDARY_STEPS = 2  # a planned change happens at least this many steps ahead of the newest
LEASE_STEP = 1.25  # the longest lease is written down in steps of this factor
RECALL_LIMIT = 2.0  # seconds to wait for what a mirror kept of a lost host
SWAP_COST = 1.0  # seconds: assumed cost of a swap before one was measured


@dataclass(slots=True)
class JobState:
    """The state of one job."""

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
    distrust: str = ""  # why nobody's live state is used until a generation lives again
    start_why: str = ""  # why the generation did not start from the newest live state
    proof: Proof | None = None  # what the first step of the generation has to show
    incident: Incident | None = None  # open from the first fault until a generation lives
    unnamed: dict[str, dict[int, int]] = field(default_factory=dict)  # incident -> rank -> worker
    blamed: dict[int, tuple[str, str]] = field(default_factory=dict)  # worker -> fault, evidence
    job_name: str = "job"  # in the names of incidents
    fired: set[int] = field(default_factory=set)
    suspected: dict[int, int] = field(default_factory=dict)  # donor -> times since it was LIVE
    failures_at: dict[int, int] = field(default_factory=dict)  # step -> times it failed when live
    raised_at: dict[int, int] = field(default_factory=dict)  # worker -> step at which it raised
    start_failures: int = 0
    generations: list[list[int]] = field(default_factory=list)  # [number, start step, world size]
    outcome: str = ""
    exit_code: int = 0
    why: str = ""
    final_digest: str = ""
    reached: int = 0  # steps that a member had committed when the job's end ended it
    notes_lost: bool = False  # of samples: what a lost rank left is not all there
    changes_late: bool = False  # a rank's own state has changed after its last collective
    last_live: int = 0  # the newest generation that was complete
    lived: bool = False  # a generation was complete once: there is something to lose
    form_failures: int = 0  # attempts to form in a row that came to nothing
    form_error: str = ""  # why the last of them did not
    step_seconds: list[float] = field(default_factory=list)
    longest_lease: float = 0.0  # seconds; no agent was granted a longer one
    snapshots: SnapshotRegistry = field(default_factory=SnapshotRegistry)
    recoveries: Recoveries = field(default_factory=Recoveries)
    stragglers: StragglerWindow = field(default_factory=StragglerWindow)
    swap_cost: float = SWAP_COST
    sample_rows: list[list[int]] = field(default_factory=list)
    torch_versions: list[str] = field(default_factory=list)  # of the workers, in order of arrival
    agents_reported: set[str] = field(default_factory=set)
    form_began: float = 0.0
    entered: list[dict[str, Any]] = field(default_factory=list)  # who formed, and how long it took
    failing_step: int = 0
    failed_since: float | None = None
    outbox: list[tuple[str, p.Message]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    injections: list[str] = field(default_factory=list)  # specifications, for the event log
    changed: bool = False  # must be written down before the outbox is sent
    now: float = 0.0
    pauses: Pauses = field(default_factory=Pauses)  # of this process
    _slots_ranked: list[int | None] = field(default_factory=list)  # for which _ranks holds
    _ranks: dict[int, int] = field(default_factory=dict)  # worker -> rank
    _workers_of: dict[str, list[Worker]] = field(default_factory=dict)  # agent -> those alive
    awaited: int = -1  # a member that the present phase waited for when we last looked
    stall_reported: bool = False  # a beat had a row that no look has considered yet
    next_stall_look: float = 0.0
    next_straggler_look: float = 0.0

    @property
    def times(self) -> Times:
        """Timeouts that follow from patience and the measured step time."""
        return Times.derive(self.settings.patience, self.median_step)

    @property
    def median_step(self) -> float:
        """Median duration of the last steps, 0.0 before the first."""
        return statistics.median(self.step_seconds) if self.step_seconds else 0.0

    def waited(self, since: float) -> float:
        """Return for how long something was waited for; a pause of this process is no waiting."""
        return self.now - max(since, self.pauses.woke)

    def grant_lease(self, agent: Agent) -> Times:
        """Note that the agent is granted a lease now; return the times that it is to be told.

        Leases become shorter when steps do: the agent may go on until the longest one has ended.
        """
        times = self.times
        agent.leased_until = max(agent.leased_until, self.now + times.lease)
        if times.lease > self.longest_lease:
            fixed = self.settings.patience is not None
            self.longest_lease = times.lease if fixed else LEASE_STEP * times.lease
            self.changed = True  # the next coordinator must wait as long
        return times

    @property
    def members(self) -> list[int]:
        """Workers of the generation in order of rank."""
        return list(self.ranks)

    @property
    def ranks(self) -> dict[int, int]:
        """Worker -> rank, in order of rank. Slots are replaced, or changed by ``seat``."""
        if self._slots_ranked is not self.slots:
            members = [wid for wid in self.slots if wid is not None]
            self._slots_ranked = self.slots
            self._ranks = {wid: rank for rank, wid in enumerate(members)}
        return self._ranks

    def seat(self, wid: int) -> int:
        """Give the first free place of the first generation to a worker; return the place."""
        ranks = self.ranks
        self.slots += [None] * (self.settings.world_size - len(self.slots))
        place = self.slots.index(None)
        self.slots[place] = wid
        if place == len(ranks):
            ranks[wid] = place
        else:  # workers of later places have other ranks now
            self.slots = list(self.slots)
        return place

    def rank_of(self, wid: int) -> int | None:
        """Return the rank of a member."""
        return self.ranks.get(wid)

    def add_worker(self, worker: Worker) -> None:
        """Take in a worker that was not known."""
        self.workers[worker.wid] = worker
        self._workers_of.setdefault(worker.agent, []).append(worker)

    def alive_at(self, agent: str) -> list[Worker]:
        """Return the workers of one agent that are not known to be gone."""
        alive = [worker for worker in self._workers_of.get(agent, ()) if not worker.gone]
        self._workers_of[agent] = alive
        return list(alive)

    def alive(self, wids: Iterable[int]) -> list[int]:
        """Return those of ``wids`` that are not known to be gone."""
        return [wid for wid in wids if not self.workers[wid].gone]

    def ready_spares(self) -> list[int]:
        """Return the workers without a place that can take one now."""
        taken = self.ranks
        return [
            worker.wid
            for worker in self.workers.values()
            if worker.ready
            and not (worker.gone or worker.fencing)
            and worker.wid not in taken
            and self.agents[worker.agent].connected
        ]

    def starting(self) -> list[int]:
        """Return the workers that are on their way to being ready."""
        return [
            worker.wid
            for worker in self.workers.values()
            if not worker.gone and worker.ready is None and not worker.fencing
        ]

    @property
    def is_full(self) -> bool:
        """Whether the generation has as many members as the job wants."""
        return len(self.ranks) == self.settings.world_size

    def committed_counts(self) -> list[int]:
        """Return what the members are known to have committed in this generation."""
        found = []
        for wid in self.members:
            worker = self.workers[wid]
            if worker.progress is not None and worker.progress.generation == self.generation:
                found.append(worker.progress.committed)
            if worker.proposal is not None:
                found.append(worker.proposal.committed)
        return found

    def start_or_committed(self) -> int:
        """Return the newest step count that any member is known to have committed."""
        return max([self.start_step, self.reached, *self.committed_counts()])

    def boundary(self) -> int:
        """Return a step that no member has begun yet and every member can be told of in time."""
        newest = max(self.committed_counts(), default=self.start_step)
        margin = int(0.5 / self.median_step) if self.median_step else 0
        return newest + max(BOUNDARY_STEPS, margin) + 1

    def sure_count(self, committed: int, entry: int) -> int:
        """Return for how many steps a rank's own state is known, of what its records say."""
        return committed if self.changes_late else entry

    def is_leaving(self, wid: int) -> bool:
        """Whether the worker is gone or being fenced."""
        return self.workers[wid].gone or bool(self.workers[wid].fencing)

    def is_recalled(self, wid: int) -> bool:
        """Whether a mirror may still say what it kept of this worker."""
        since = self.workers[wid].recalled
        return since is not None and self.waited(since) < RECALL_LIMIT

    def by_agent(self, wids: Iterable[int]) -> dict[str, list[int]]:
        """Return the workers of each agent that is not gone."""
        found: dict[str, list[int]] = {}
        for wid in wids:
            name = self.workers[wid].agent
            if name in self.agents:
                found.setdefault(name, []).append(wid)
        return found

    def send(self, agent: str, message: p.Message) -> None:
        """Leave an order for one agent, or for ``ALL``."""
        self.outbox.append((agent, message))

    def event(self, event: str, **facts: Any) -> None:
        """Leave a fact for the event log."""
        self.events.append({"event": event, "generation": self.generation, **facts})

    def who(self, wid: int) -> dict[str, Any]:
        """Return the facts by which a person finds a worker."""
        worker = self.workers[wid]
        agent = self.agents.get(worker.agent)
        return {
            "worker": wid,
            "rank": self.rank_of(wid),
            "pid": worker.pid or None,
            "host": agent.host if agent is not None else None,
        }
