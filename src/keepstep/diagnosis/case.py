"""One hang: everything known of it, and the form of an accusation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keepstep.diagnosis.evidence import Evidence, Life
from keepstep.diagnosis.frontier import Frontier
from keepstep.diagnosis.history import History
from keepstep.diagnosis.stacks import call_site
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Step, Waits, find_waits
from keepstep.recorder.model import Entry

NAMED_TOGETHER = 8  # ranks of one stuck collective that a verdict still names as suspects


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of one hang."""

    evidence: Evidence
    frontier: Frontier
    waits: Waits
    history: History

    def life(self, rank: int) -> Life:
        """What is known of a rank's process besides its dump."""
        observation = self.evidence.observations.get(rank)
        return Life.UNKNOWN if observation is None else observation.life

    def group(self, step: Step) -> str:
        """The name of a step's group for a person."""
        return self.frontier.roster.groups[step.group].label

    def group_of(self, rank: int, entry: Entry) -> int:
        """The index of the group of a rank's entry."""
        return self.frontier.roster.of[rank][entry.pg_id, entry.group]

    def name(self, step: Step, entry: Entry | None = None) -> str:
        """A step for a person: ``all_reduce 6``, ``the transfer from rank 2 to rank 3``."""
        if step.transfer:
            source = f"rank {step.source}" if step.source >= 0 else "any rank"
            target = f"rank {step.target}" if step.target >= 0 else "any rank"
            return f"the transfer from {source} to {target}"
        waiting = self.waits.meetings[step].waiting if step in self.waits.meetings else {}
        known = entry or next((e for _, e in sorted(waiting.items()) if e is not None), None)
        return f"{known.operation.name if known else 'collective'} {step.sequence}"

    def place(self, step: Step, entry: Entry | None = None) -> str:
        """A step with its group."""
        return f"{self.name(step, entry)} of group {self.group(step)}"


@dataclass(frozen=True, slots=True)
class Blame:
    """One fault. ``ranks`` are suspects together where ``would_decide`` is not empty."""

    ranks: tuple[int, ...]
    fault: Fault
    what: str  # a clause that follows the ranks: "did not enter all_reduce 6 of group ..."
    step: Step
    waiting: tuple[int, ...] = ()
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[str, ...] = ()
    would_decide: tuple[str, ...] = ()


def open_case(evidence: Evidence, frontier: Frontier) -> Case:
    """Draw the graph of a frontier and put everything together."""
    return Case(evidence, frontier, find_waits(frontier), History(frontier))


def record_of(entry: Entry | None) -> int:
    """The record number of an entry, before all others where only counters know of it."""
    return -1 if entry is None else entry.record


def dependents(case: Case, ranks: Iterable[int]) -> tuple[int, ...]:
    """Ranks that wait, directly or not, for any of these."""
    needed_by: dict[int, set[int]] = {}
    for meeting in case.waits.meetings.values():
        for lacking in meeting.lacks:
            needed_by.setdefault(lacking, set()).update(meeting.waiting)
    guilty = set(ranks)
    found: set[int] = set()
    work = list(guilty)
    while work:
        for rank in needed_by.get(work.pop(), ()):
            if rank not in found:
                found.add(rank)
                work.append(rank)
    return tuple(sorted(found - guilty))


def others_of(case: Case, step: Step, ranks: Iterable[int]) -> tuple[int, ...]:
    """The members of a step's group without some."""
    members = case.frontier.roster.groups[step.group].members
    return tuple(sorted(set(members) - set(ranks)))


def from_site(entry: Entry, other: Entry | None = None) -> str:
    """Where a call came from, as the end of a phrase; the line in which it differs from another."""
    site = call_site(entry.stack, other.stack if other is not None else ())
    return f" at {site}" if site else ""


def capital(text: str) -> str:
    """A sentence with its first letter capital."""
    return text[:1].upper() + text[1:]
