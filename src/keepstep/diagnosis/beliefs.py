"""What each rank believed about each of its groups, and who waits for whom: the tables."""

from __future__ import annotations

from keepstep.diagnosis import words
from keepstep.diagnosis.case import Case
from keepstep.diagnosis.stacks import call_site
from keepstep.diagnosis.verdict import Belief, Victim


def list_beliefs(case: Case) -> tuple[Belief, ...]:
    """One line for each rank and group, sorted."""
    labels = [group.label for group in case.frontier.roster.groups]
    found = []
    for rank, standing in case.frontier.standings.items():
        for group, position in standing.positions.items():
            entry = position.pending
            done = ""
            if position.done is not None:
                done = f"{position.done.operation.name} {position.done.sequence}"
            elif position.completed:
                done = f"number {position.completed}"
            pending = ""
            if entry is not None:
                detail = words.tensors(entry.operation)
                pending = f"{entry.operation.name} {entry.sequence} {detail}".rstrip()
                pending += f", {entry.state}"
            elif position.pending_sequence is not None:
                pending = f"number {position.pending_sequence}"
            site = call_site(entry.stack) if entry is not None else ""
            found.append(Belief(rank, labels[group], done, pending, site))
    found.sort(key=lambda belief: (belief.rank, belief.group))
    return tuple(found)


def list_victims(case: Case, guilty: frozenset[int]) -> tuple[Victim, ...]:
    """Ranks that wait for others, with the first thing that they wait in."""
    found = []
    for rank, steps in sorted(case.waits.of.items()):
        if rank in guilty:
            continue
        for step in steps:
            lacks = case.waits.meetings[step].lacks
            needed = tuple(sorted(other for other in lacks if other != rank))
            if needed:
                entry = case.waits.meetings[step].waiting[rank]
                found.append(Victim(rank, needed, case.group(step), case.name(step, entry)))
                break
    return tuple(found)
