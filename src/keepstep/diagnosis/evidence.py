"""What a diagnosis may use. All of it is optional except one dump or one other observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from keepstep.recorder.model import Finding, Frame, RankDump


class Life(StrEnum):
    """What is known about a process besides its dump."""

    ALIVE = "alive"
    DEAD = "dead"  # exited or killed; ``Observation.why`` says how
    CLEAN_EXIT = "clean_exit"  # it returned from its script
    STOPPED = "stopped"  # SIGSTOP, a debugger, the freezer
    UNRESPONSIVE = "unresponsive"  # it does not answer, and nothing says that it died
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What something else than the recorder saw of one rank."""

    life: Life = Life.UNKNOWN
    why: str = ""  # "killed by SIGKILL", "RAS: considered dead", ...
    stack: tuple[Frame, ...] = ()  # main thread, innermost first
    holds_gil: bool = False
    step: int | None = None  # last step that it committed
    raised: str = ""  # what its step raised, where that was seen: "ValueError: no such file"
    missing_dump: str = ""  # why it has no dump, where known
    collective_counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # NCCL RAS: communicator -> launched collectives of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything about one attempt of one job. The order of ``dumps`` never matters."""

    dumps: tuple[RankDump, ...] = ()
    observations: Mapping[int, Observation] = field(default_factory=dict)
    expected_ranks: frozenset[int] | None = None  # None: derived from what the groups list
    findings: tuple[Finding, ...] = ()  # of the reading
    earlier: tuple[RankDump, ...] = ()
    # the same ranks some time before (30 s or more is best): what moved in between is not hung
