"""All that a rehearsal found, as one record: what the report shows in each of its forms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from keepstep.canary.cell import Cell
from keepstep.canary.facts import Facts
from keepstep.canary.verdict import CellVerdict, Judgement, Verdict
from keepstep.drills.record import DrillRecord

# Why something was not run that needs nothing but another sitting on the same machine.
OVER = "the time of this sitting was over (--minutes); the same command goes on"


class Machine(Facts):
    """Where it ran."""

    host: str
    processors: int | None = None  # that it may use
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()  # models, one each
    nodes: int = 1
    system: str = ""  # such as Linux 6.8, Debian 12


class StackSummary(Facts):
    """One stack, as its running processes said."""

    name: str
    torch: str  # the version really running
    origin: str = ""  # created, python, adopted
    facts: dict[str, str] = Field(default_factory=dict)  # worth reading: commit, CUDA, NCCL, driver


class CellResult(Facts):
    """One cell of the matrix."""

    cell: Cell
    state: Literal["judged", "not run", "interrupted"]
    verdict: CellVerdict | None = None  # None unless it was judged
    seconds: float = 0.0  # of all of its runs
    receipt: str = ""  # file, relative to the report


class BoundaryRow(Facts):
    """One way back: what it undoes, until when, and what it leaves as it is."""

    lever: str  # such as TORCH_DIST_USE_NCCL2=0, nccl-legacy, the old stack
    undoes: str
    how: str  # who sets what, where, and what must be started again
    until: str  # a date, or the release that removes it
    keeps_checkpoints: str  # yes, no, or under which condition: those saved after the upgrade
    cannot_undo: str
    proven: Verdict  # on this machine, in this rehearsal
    proof: str = ""  # in one clause
    receipt: str = ""  # file, relative to the report


class CheckpointAnswer(Facts):
    """The newest checkpoint that the old stack can read."""

    question: str = "Which is the newest checkpoint that the old stack can read?"
    verdict: Verdict
    answer: str  # in one sentence
    evidence: tuple[str, ...] = ()
    next: str = ""


class Cost(Facts):
    """What one useful step costs on each stack: all ranks, all their processors or GPUs."""

    what: str  # such as "dp, 2 ranks, gloo"
    unit: Literal["GPU hours", "core hours"]
    per_step: dict[str, float | None]  # by stack or variant, the reference first; None: not known
    note: str = ""


class Numbers(Facts):
    """Losses and gradient norms of a cell of the new stack, beside those of the old one."""

    cell: str
    against: str  # the cell of the old stack
    runs: int  # complete ones of the new stack
    reference_runs: int  # and of the old one: each was compared with each
    steps: int  # of each run, the first ones
    missing: str = ""  # what no record says, so that nothing is known of the whole
    difference: float | None = None  # the largest relative one; None: equal to the last bit
    where: str = ""  # it is, such as "loss of step 3 on rank 1"


class OpenDifference(Facts):
    """Something that is not the same and that nobody has explained."""

    where: str  # the stacks, ranks or cells
    what: str  # the fact
    values: dict[str, str]  # by place
    note: str = ""  # what it may mean, and what would settle it


class NotRun(Facts):
    """A cell or drill that was not run, for want of a machine or of time."""

    what: str  # the id of the cell or the name of the drill
    proves: str  # what it was to prove, in one clause
    why: str

    @property
    def for_time(self) -> bool:
        """Whether time was all that it lacked: the same command on this machine runs it."""
        return self.why == OVER


class ReceiptFile(Facts):
    """A receipt beside the report."""

    file: str  # relative to the report
    sha256: str
    about: str  # the id of a cell, the name of a drill


class Rehearsal(Facts):
    """All of it."""

    format: Literal[1] = 1
    plan: str
    plan_sha256: str
    keepstep: str  # version
    started: str  # ISO 8601, UTC
    seconds: float  # of work, all sittings together
    machine: Machine
    stacks: tuple[StackSummary, ...]  # the old one first
    cells: tuple[CellResult, ...]
    judgement: Judgement
    drills: tuple[DrillRecord, ...]
    boundary: tuple[BoundaryRow, ...] = ()
    checkpoint: CheckpointAnswer | None = None
    costs: tuple[Cost, ...] = ()
    numbers: tuple[Numbers, ...] | None = None  # None: written before they were compared
    differences: tuple[OpenDifference, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    unprovable: tuple[str, ...] = ()  # what a machine of this kind can never prove, in plain words
    next: tuple[str, ...] = ()  # what to do, beyond what gates and drills say themselves
    receipts: tuple[ReceiptFile, ...] = ()  # of the cells and drills
    notes: tuple[str, ...] = ()  # such as when it was interrupted and resumed
