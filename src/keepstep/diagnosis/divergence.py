"""Ranks that run another program: one call more, one call less, or another order.

Collectives pair by number, so after one extra call every later call pairs with the wrong one, and
the rank that waits in the end may be the guilty one. Only looking back tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keepstep.diagnosis.history import History, Token, token
from keepstep.diagnosis.mismatch import outvoted
from keepstep.recorder.model import Entry

MOST_SHIFTED = 3  # extra calls in a row that are looked for
LOOK_BACK = 64  # sequences before the hang in which the order of groups is compared
ASKED = 64  # members of a group that are compared


@dataclass(frozen=True, slots=True)
class Shift:
    """From ``sequence`` on, ``ahead`` makes the calls of ``behind`` one or more numbers later."""

    ahead: int
    behind: int
    sequence: int
    amount: int
    entry: Entry  # of ``ahead``, the call that ``behind`` does not have
    usual: bool  # both made this same call before: more likely left out than added


def find_shift(history: History, group: int, ahead: int, behind: int) -> Shift | None:
    """Walk back from the newest calls of two ranks until they agree without a shift.

    Returns:
        The call that ``ahead`` has and ``behind`` has not; None if their calls do not line up.
    """
    calls = {s: token(e) for s, e in history.of(ahead, group).items()}
    others = {s: token(e) for s, e in history.of(behind, group).items()}
    if not calls or not others:
        return None
    for amount in range(1, MOST_SHIFTED + 1):
        sequence = min(max(others), max(calls) - amount)
        lowest = None
        while sequence in others and sequence + amount in calls:
            if not calls[sequence + amount].agrees(others[sequence]):
                break
            lowest = sequence
            sequence -= 1
        if lowest is None:
            continue
        for at in range(lowest, max(calls) + 1):
            if at in others and at in calls and not calls[at].agrees(others[at]):
                if max(calls) - max(others) < amount and _agree_after(calls, others, at):
                    break  # one call in place of another: nothing has moved
                usual = _known_before(calls, at) and _known_before(others, at, calls[at])
                entry = history.of(ahead, group)[at]
                return Shift(ahead, behind, at, amount, entry, usual)
    return None


def likelier_added(extra: Shift, skipped: Shift | None) -> bool:
    """Whether a rank added a call rather than left one out, where its calls may fit both.

    In a loop of n calls, one left out and n - 1 added look alike: the fewer count. A call that both
    made before belongs to the loop, and was hardly added.
    """
    if skipped is not None and extra.amount != skipped.amount:
        return extra.amount < skipped.amount
    return not extra.usual


def _agree_after(calls: dict[int, Token], others: dict[int, Token], at: int) -> bool:
    both = [s for s in calls if s > at and s in others]
    return all(calls[s].agrees(others[s]) for s in both)


def _known_before(calls: dict[int, Token], at: int, what: Token | None = None) -> bool:
    wanted = what or calls[at]
    return any(s < at and call == wanted for s, call in calls.items())


def called_before(history: History, group: int, rank: int, entry: Entry) -> bool | None:
    """Whether a rank ever made this call in this group; None if no stack can say."""
    wanted = token(entry)
    known = [token(other) for other in history.of(rank, group).values()]
    if not wanted.site or not any(call.site for call in known):
        return None
    return wanted in known


@dataclass(frozen=True, slots=True)
class Disorder:
    """A rank that came to a collective after another number of calls in other groups."""

    rank: int
    group: int
    sequence: int
    other: int  # the group in which it had made another number of calls


def find_disorder(
    history: History, group: int, upto: int, members: Iterable[int]
) -> Disorder | None:
    """Find the rank whose order of calls over several groups differs from the others'.

    Compared are groups that members share, then groups of the same kind (equal description and
    size). The earliest sequence at which exactly one rank stands out counts.
    """
    asked = history.with_dump(members)[:ASKED]
    before = {rank: _calls_before(history, rank, group, upto) for rank in asked}
    for sequence in range(max(1, upto - LOOK_BACK), upto + 1):
        at = {rank: calls[sequence] for rank, calls in before.items() if sequence in calls}
        if len(at) < 2:
            continue
        found = _one_odd(history, at) or _one_odd_of_kind(history, at)
        if found is not None:
            return Disorder(found[0], group, sequence, found[1])
    return None


def _calls_before(history: History, rank: int, group: int, upto: int) -> dict[int, dict[int, int]]:
    """Per sequence of ``group``: the newest sequence of each other group before it."""
    slots = history.frontier.roster.of[rank]
    newest: dict[int, int] = {}
    found: dict[int, dict[int, int]] = {}
    for entry in history.entries(rank):
        if entry.is_p2p:
            continue
        index = slots[entry.pg_id, entry.group]
        if index != group:
            newest[index] = entry.sequence
        elif upto - LOOK_BACK <= entry.sequence <= upto and entry.sequence not in found:
            found[entry.sequence] = dict(newest)
    return found


def _one_odd(history: History, at: dict[int, dict[int, int]]) -> tuple[int, int] | None:
    """The one rank that differs in more shared groups than any other."""
    shared: dict[int, dict[int, int]] = {}
    for rank, calls in at.items():
        for index, newest in calls.items():
            shared.setdefault(index, {})[rank] = newest
    marks: dict[int, float] = {}
    where: dict[int, int] = {}
    for index, votes in sorted(shared.items()):
        if len(set(votes.values())) < 2:
            continue
        odd = outvoted(votes)
        for rank in votes if odd is None else odd:
            marks[rank] = marks.get(rank, 0.0) + (0.5 if odd is None else 1.0)
            where.setdefault(rank, index)
    return _highest(marks, where)


def _one_odd_of_kind(history: History, at: dict[int, dict[int, int]]) -> tuple[int, int] | None:
    """The one rank that differs from the others in groups of the same kind."""
    groups = history.frontier.roster.groups
    kinds: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for rank, calls in at.items():
        for index, newest in calls.items():
            kind = (groups[index].description, len(groups[index].members))
            kinds.setdefault(kind, {})[rank] = (newest, index)
    marks: dict[int, float] = {}
    where: dict[int, int] = {}
    for votes in kinds.values():
        if len(votes) < 3:
            continue
        odd = outvoted({rank: newest for rank, (newest, _) in votes.items()})
        for rank in odd or ():
            marks[rank] = marks.get(rank, 0.0) + 1.0
            where.setdefault(rank, votes[rank][1])
    return _highest(marks, where)


def _highest(marks: dict[int, float], where: dict[int, int]) -> tuple[int, int] | None:
    if not marks:
        return None
    top = max(marks.values())
    ranks = [rank for rank, mark in marks.items() if mark == top]
    return (ranks[0], where[ranks[0]]) if len(ranks) == 1 else None
