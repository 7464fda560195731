"""Ranks that came to the same place with another operation, size or type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from keepstep.diagnosis.habits import only_slip
from keepstep.diagnosis.history import History, Signature, signature
from keepstep.diagnosis.waits import Meeting, Step
from keepstep.recorder.model import Direction, Entry

Vote = TypeVar("Vote")

HABIT = "shortly before, it alone went from one call to another as no rank ever did"
WITNESSES = 64  # finished members that are asked as well, so that a huge group stays cheap


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Different operations at one place. ``odd`` are all of them where nothing decides."""

    step: Step
    entries: dict[int, Entry]
    odd: tuple[int, ...]
    decided: bool
    why: str  # what decided; "" for a plain majority

    def usual(self) -> Entry:
        """An entry of a rank that is not odd, or of the lowest rank where all are."""
        others = [rank for rank in sorted(self.entries) if rank not in self.odd]
        return self.entries[(others or sorted(self.entries))[0]]


def outvoted(votes: Mapping[int, Vote]) -> list[int] | None:
    """Return the ranks that more than half of all contradict; None if no vote has a majority."""
    count = Counter(votes.values())
    best, number = max(count.items(), key=lambda item: item[1])
    if number * 2 <= len(votes):
        return None
    return sorted(rank for rank, vote in votes.items() if vote != best)


def find_mismatch(history: History, step: Step, meeting: Meeting) -> Mismatch | None:
    """Compare what the ranks at one place asked for.

    Returns:
        None if all agree, or if fewer than two of them can be compared.
    """
    if step.transfer:
        return _transfer_mismatch(history, step, meeting)
    entries = {rank: entry for rank, entry in meeting.waiting.items() if entry is not None}
    for rank in sorted(meeting.finished)[:WITNESSES]:
        entry = history.entry(rank, step.group, step.sequence)
        if entry is not None:
            entries[rank] = entry
    first = next(iter(entries.values()), None)
    if first is None or all(e.operation is first.operation for e in entries.values()):
        return None
    votes = {rank: signature(entry.operation) for rank, entry in entries.items()}
    if len(set(votes.values())) == 1:
        return None
    odd = outvoted(votes)
    if odd is not None:
        return Mismatch(step, entries, tuple(odd), True, "")
    for decide in (_by_siblings, _by_past, _by_habit):
        odd, why = decide(history, step, entries, votes)
        if odd:
            return Mismatch(step, entries, tuple(odd), True, why)
    return Mismatch(step, entries, tuple(sorted(entries)), False, "")


def _transfer_mismatch(history: History, step: Step, meeting: Meeting) -> Mismatch | None:
    """A send and its receive must carry equally many elements of one type."""
    entries = {rank: entry for rank, entry in meeting.waiting.items() if entry is not None}
    if len(entries) < 2 or -1 in (step.source, step.target):
        return None
    if len({_number(history, step, rank) for rank in entries}) > 1:
        return None
    votes = {signature(entry.operation)[1:] for entry in entries.values()}
    if len(votes) == 1:
        return None
    slip = only_slip(history, entries)
    if slip is not None:
        return Mismatch(step, entries, (slip.rank,), True, HABIT)
    return Mismatch(step, entries, tuple(sorted(entries)), False, "")


def _number(history: History, step: Step, rank: int) -> int:
    """Which transfer of a pair a rank is in; a number of its own if its buffer has wrapped."""
    standing = history.frontier.standings[rank]
    direction = Direction.SEND if rank == step.source else Direction.RECEIVE
    peer = step.target if rank == step.source else step.source
    transfers = standing.transfers.get((step.group, direction, peer))
    return transfers.number if transfers is not None and standing.whole else -1 - rank


def _by_siblings(
    history: History, step: Step, entries: Mapping[int, Entry], votes: Mapping[int, Signature]
) -> tuple[list[int], str]:
    """Ask the groups of the same kind what they do at the same sequence."""
    groups = history.frontier.roster.groups
    own = groups[step.group]
    asked: Counter[Signature] = Counter()
    for index, group in enumerate(groups):
        same_kind = group.description == own.description and len(group.members) == len(own.members)
        if index == step.group or not same_kind:
            continue
        for rank in history.with_dump(group.members)[:WITNESSES]:
            entry = history.entry(rank, index, step.sequence)
            if entry is not None:
                asked[signature(entry.operation)] += 1
    agreeing = {vote for vote in votes.values() if asked[vote]}
    if len(agreeing) != 1:
        return [], ""
    odd = [rank for rank in sorted(entries) if votes[rank] not in agreeing]
    return odd, "groups of the same kind do at this place what the other one does"


def _by_past(
    history: History, step: Step, entries: Mapping[int, Entry], votes: Mapping[int, Signature]
) -> tuple[list[int], str]:
    """Ask the group's own past: who does something here that it never did."""
    seen: set[Signature] = set()
    for rank in entries:
        for sequence, entry in history.of(rank, step.group).items():
            if sequence < step.sequence:
                seen.add(signature(entry.operation))
    agreeing = {vote for vote in votes.values() if vote in seen}
    if len(agreeing) != 1:
        return [], ""
    odd = [rank for rank in sorted(entries) if votes[rank] not in agreeing]
    return odd, "the group did before what the other one does here, and never what this one does"


def _by_habit(
    history: History, step: Step, entries: Mapping[int, Entry], votes: Mapping[int, Signature]
) -> tuple[list[int], str]:
    """Ask for the one that left the order of calls that all others keep."""
    slip = only_slip(history, entries)
    return ([], "") if slip is None else ([slip.rank], HABIT)


def differences(odd: Entry, usual: Entry) -> list[str]:
    """Say in words in what two operations differ."""
    mine, theirs = signature(odd.operation), signature(usual.operation)
    if mine[0] != theirs[0]:
        return [f"operation {mine[0]} instead of {theirs[0]}"]
    found = []
    if mine[1] != theirs[1]:
        found.append(f"{mine[1]} elements instead of {theirs[1]}")
    if mine[2] != theirs[2]:
        found.append(f"{', '.join(mine[2])} instead of {', '.join(theirs[2])}")
    return found


def all_to_all_balance(history: History, step: Step, ranks: Iterable[int]) -> tuple[int, int]:
    """Return how many elements all ranks together give to, and take from, an all-to-all."""
    given = taken = 0
    for rank in ranks:
        entry = history.entry(rank, step.group, step.sequence)
        if entry is not None:
            for sizes, sign in (
                (entry.operation.input_sizes, 0),
                (entry.operation.output_sizes, 1),
            ):
                amount = sum(_elements(size) for size in sizes)
                given, taken = (given, taken + amount) if sign else (given + amount, taken)
    return given, taken


def _elements(size: tuple[int, ...]) -> int:
    product = 1
    for extent in size:
        product *= extent
    return product
