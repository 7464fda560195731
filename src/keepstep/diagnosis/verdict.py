"""The answer of a diagnosis: who is to blame, who waits for whom, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What kind of answer it is."""

    CULPRIT = "culprit"
    NO_RANK = "no_rank"  # a hang for which no single rank is to blame (deadlock, library)
    HEALTHY = "healthy"
    SLOW = "slow"  # things still move
    UNKNOWN = "unknown"  # ``Verdict.would_decide`` says what is missing


class Fault(StrEnum):
    """What the culprit did."""

    STALLED = "stalled"  # it did not come to the collective that others wait in
    DEAD = "dead"  # the same, and its process is known to be gone
    RAISED = "raised"  # its step raised, so it did not come; seen by whoever ran it
    DEVICE = "device"  # it entered and its device never completed
    MISMATCH = "mismatch"  # another operation, size or type than the others at the same place
    EXTRA_COLLECTIVE = "extra_collective"  # it entered a collective that the others do not have
    UNEVEN_INPUTS = "uneven_inputs"  # it left the training earlier than the others
    DEADLOCK = "deadlock"  # a cycle: each waits for the next
    NONE = ""


class Confidence(StrEnum):
    """How sure the verdict is."""

    HIGH = "high"  # the evidence admits no other reading
    MEDIUM = "medium"  # another reading needs a second fault or a missing file that disagrees
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Victim:
    """A rank that waits, and for whom."""

    rank: int
    waits_for: tuple[int, ...]  # ranks that it waits for directly
    group: str
    operation: str  # "all_reduce 6"


@dataclass(frozen=True, slots=True)
class Belief:
    """What one rank believed about one group when its dump was written."""

    rank: int
    group: str
    last_completed: str  # "all_reduce 5", "" for none in the buffer
    pending: str  # "all_reduce 6 [1024] Float, scheduled", "" where it waits for nothing
    call_site: str  # "train.py:31 step", "" where no stack was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of one attempt. Sequences are sorted, so that equal evidence gives equal text."""

    outcome: Outcome
    ranks: tuple[int, ...] = ()
    fault: Fault = Fault.NONE
    faults: tuple[tuple[int, Fault], ...] = ()  # per culprit where they differ
    confidence: Confidence = Confidence.HIGH
    headline: str = ""  # one sentence: which rank, what, where
    evidence: tuple[str, ...] = ()
    victims: tuple[Victim, ...] = ()
    beliefs: tuple[Belief, ...] = ()
    would_decide: tuple[str, ...] = ()  # what would settle what this evidence cannot
    next_steps: tuple[str, ...] = ()
