"""Who takes part in a job: agents, workers, and the change of members under way."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from keepstep.runtime import protocol as p


class Phase(enum.StrEnum):
    """Where the job is."""

    GATHERING = "gathering"
    LIVE = "live"
    HALTING = "halting"
    FORMING = "forming"
    FINISHING = "finishing"
    ENDED = "ended"


@dataclass(slots=True)
class Agent:
    """One host's agent."""

    name: str
    host: str
    address: str
    ranks: int  # how many ranks of the first generation it brings
    slots: int  # worker processes, spares included
    connected: bool = True
    heard: float = 0.0
    leased_until: float = 0.0  # the longest lease that it was ever granted ends by then
    answered: float = float("-inf")  # when it was granted the newest


@dataclass(slots=True)
class Worker:
    """One worker process, from launch to exit."""

    wid: int
    agent: str
    launched: float
    first_rank: int = 0  # RANK in its environment
    pid: int = 0  # 0: not told yet
    joined: bool = False
    ready: p.Ready | None = None
    handle: str = ""
    proposal: p.Proposal | None = None
    done: p.Done | None = None
    failed: p.StepFailed | None = None
    progress: p.Progress | None = None
    formed: int = 0
    proven: bool = False  # has committed a step
    known: int = -1  # after its loss: step count for which its per-rank state is known
    keeper: str = ""  # address of the vault that has it, when its own host is lost
    recalled: float | None = None  # since when we wait to hear what the mirror has
    fencing: str = ""  # why it is being fenced
    gone: bool = False
    exit_code: int | None = None


@dataclass(slots=True)
class Incident:
    """What happened since the last generation that lived, for the folder of its evidence."""

    generation: int
    step: int
    members: list[list[Any]]  # [rank, worker, agent, host]
    faults: list[dict[str, Any]] = field(default_factory=list)  # rank, worker, fault, evidence


@dataclass(slots=True)
class Change:
    """A change of members under way."""

    began: float
    drain: int | None = None  # a healthy worker to replace once all are at the boundary
    at_step: int | None = None  # planned: halt after this many committed steps
    waiting_since: float | None = None  # no spare is ready
