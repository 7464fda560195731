"""Ranks that left the common order of calls: one more, one less, or another order."""

from __future__ import annotations

from collections.abc import Iterable

from keepstep.diagnosis import words
from keepstep.diagnosis.case import (
    NAMED_TOGETHER,
    Blame,
    Case,
    capital,
    dependents,
    from_site,
    others_of,
)
from keepstep.diagnosis.divergence import Shift, find_disorder, find_shift, likelier_added
from keepstep.diagnosis.ends import Ends
from keepstep.diagnosis.habits import Slip, only_slip
from keepstep.diagnosis.programs import is_ahead
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Lack, Step


def blame_extra(
    case: Case, ranks: tuple[int, ...], shift: Shift, step: Step, waiting: tuple[int, ...] = ()
) -> Blame:
    """Ranks that made a call that the others do not have."""
    entry = shift.entry
    theirs = case.history.entry(shift.behind, step.group, shift.sequence)
    lines = [
        f"Rank {shift.ahead} made call {shift.sequence} of group {case.group(step)}"
        f" ({entry.operation.name}{from_site(entry, theirs)}); rank {shift.behind} made no such"
        + " call"
        + (f" and has {theirs.operation.name}{from_site(theirs, entry)} there." if theirs else "."),
        f"From there on, call n of rank {shift.ahead} is call n - {shift.amount} of rank"
        f" {shift.behind}.",
    ]
    return Blame(
        ranks,
        Fault.EXTRA_COLLECTIVE,
        f"entered {entry.operation.name} {shift.sequence} of group {case.group(step)}, which"
        f" {words.ranks(others_of(case, step, ranks))} did not call",
        step,
        waiting=waiting or others_of(case, step, ranks),
        confidence=Confidence.HIGH if entry.stack else Confidence.MEDIUM,
        evidence=tuple(lines),
    )


def blame_skipped(case: Case, ranks: tuple[int, ...], shift: Shift, step: Step) -> Blame:
    """Ranks that left out a call that the others made."""
    entry = shift.entry
    return Blame(
        ranks,
        Fault.MISMATCH,
        f"left out {entry.operation.name} {shift.sequence} of group {case.group(step)}",
        step,
        waiting=others_of(case, step, ranks),
        confidence=Confidence.HIGH if entry.stack else Confidence.MEDIUM,
        evidence=(
            f"Rank {shift.ahead} made call {shift.sequence} of group {case.group(step)}"
            f" ({entry.operation.name}{from_site(entry)}); {words.ranks(ranks)} did not.",
            f"From there on, call n of rank {shift.ahead} is call n - {shift.amount} of"
            f" {words.ranks(ranks)}.",
        ),
    )


def blame_slip(case: Case, slip: Slip, step: Step) -> Blame:
    """A rank that once left the order of calls that all others keep."""
    entry, previous = slip.entry, slip.previous
    place = f"{entry.operation.name} {entry.sequence}{from_site(entry)}"
    # A member without a dump may have called there too: then the others are late, and it is right.
    silent = tuple(sorted(set(others_of(case, step, (slip.rank,))) - set(case.frontier.dumps)))
    would_decide = []
    if not entry.stack:
        would_decide.append(
            "Dumps with stacks (TORCH_INCLUDE_STACK_TRACE): they tell equal calls apart."
        )
    if silent:
        would_decide.append(
            f"The dumps of {words.ranks(silent)}: if they came to {place} as well, the others did"
            " not come."
        )
    return Blame(
        (slip.rank,),
        Fault.EXTRA_COLLECTIVE if slip.added else Fault.MISMATCH,
        f"entered {place}, which no other rank calls there"
        if slip.added
        else f"left the common order of calls: it came to {place}",
        step,
        waiting=dependents(case, (slip.rank,)),
        confidence=Confidence.MEDIUM if entry.stack and not silent else Confidence.LOW,
        evidence=(
            f"Rank {slip.rank} went from {previous.operation.name} {previous.sequence}"
            f"{from_site(previous)} to {place}; it did so once, and no other rank ever did.",
        ),
        would_decide=tuple(would_decide),
    )


def blame_order(case: Case, step: Step, rank: int, sequence: int) -> Blame:
    """A rank that came to a call earlier than the ranks that share its other groups."""
    entry = case.history.entry(rank, step.group, sequence)
    name = entry.operation.name if entry is not None else "collective"
    return Blame(
        (rank,),
        Fault.EXTRA_COLLECTIVE,
        f"entered {name} {sequence} of group {case.group(step)} before the others had come to it",
        step,
        waiting=others_of(case, step, (rank,)),
        confidence=Confidence.MEDIUM,
        evidence=(
            f"Rank {rank} made call {sequence} of group {case.group(step)} after another number of"
            " calls in its other groups than the ranks that share them.",
        ),
    )


def blame_ahead(case: Case, step: Step, rank: int, others: Iterable[int]) -> Blame:
    """A rank that made calls too many of a step's group: the first of them, if the calls tell."""
    for other in case.history.with_dump(others)[:1]:
        shift = find_shift(case.history, step.group, rank, other)
        if shift is not None:
            return blame_extra(case, (rank,), shift, step)
    return blame_order(case, step, rank, step.sequence)


def _out_of_order(case: Case, step: Step, rank: int) -> Blame:
    others = others_of(case, step, (rank,))
    if not step.transfer and is_ahead(case.history, rank, step.group, step.sequence, others):
        return blame_ahead(case, step, rank, others)
    meeting = case.waits.meetings[step]
    entry = meeting.waiting.get(rank)
    missed = [
        other for other, m in case.waits.meetings.items() if rank in m.lacks and other != step
    ]
    left = f" without {case.place(missed[0])}" if missed else ""
    return Blame(
        (rank,),
        Fault.MISMATCH,
        f"came to {case.place(step, entry)} out of order{left}",
        step,
        waiting=dependents(case, (rank,)),
        confidence=Confidence.MEDIUM,
        evidence=(
            f"Rank {rank} came to {case.place(step, entry)} after another number of calls in its"
            " other groups than the ranks that share them, or than in its own past.",
        ),
    )


def blame_loops(case: Case, found: Ends) -> tuple[list[Blame], list[str]]:
    """Look for the one that left the common order in each loop.

    Returns:
        Who is to blame, and a sentence for each loop in which nobody stands out.
    """
    blames: list[Blame] = []
    sentences: list[str] = []
    for loop in found.loops:
        steps = sorted(node for node in loop if isinstance(node, Step))
        blame = _odd_in_loop(case, steps)
        if blame is not None:
            blames.append(blame)
        else:
            ranks = sorted(node for node in loop if not isinstance(node, Step))
            sentences.append(_loop_sentence(case, ranks))
    return blames, sentences


def _loop_sentence(case: Case, ranks: list[int]) -> str:
    parts = []
    for rank in ranks[:NAMED_TOGETHER]:
        step = case.waits.of[rank][0]
        lacking = sorted(case.waits.meetings[step].lacks)
        parts.append(f"rank {rank} is in {case.place(step)} and waits for {words.ranks(lacking)}")
    return capital("; ".join(parts)) + "."


def _odd_in_loop(case: Case, steps: list[Step]) -> Blame | None:
    """The rank in a loop that runs another program than the others, if one stands out."""
    collectives = [step for step in steps if not step.transfer]
    by_size = sorted(
        collectives, key=lambda s: (-len(case.frontier.roster.groups[s.group].members), s)
    )
    for step in by_size:
        blame = _shifted_member(case, step)
        if blame is not None:
            return blame
    waiting = {rank for step in steps for rank in case.waits.meetings[step].waiting}
    slip = only_slip(case.history, waiting)
    if slip is not None:
        return blame_slip(case, slip, case.waits.of[slip.rank][0])
    for step in by_size:
        members = case.frontier.roster.groups[step.group].members
        disorder = find_disorder(case.history, step.group, step.sequence, members)
        if disorder is not None:
            return _out_of_order(case, step, disorder.rank)
    absent = {rank for step in steps for rank in case.waits.meetings[step].lacking(Lack.ABSENT)}
    if len(absent) == 1 and absent <= set(case.waits.of):
        (rank,) = absent  # all others came, and are only held up
        return _out_of_order(case, case.waits.of[rank][0], rank)
    return None


def _shifted_member(case: Case, step: Step) -> Blame | None:
    """The member of a group whose calls are one more or one less than those of the others."""
    members = case.history.with_dump(case.frontier.roster.groups[step.group].members)
    if len(members) < 3:
        return None
    newest = {rank: max(case.history.of(rank, step.group), default=0) for rank in members}
    most = sorted(newest.values())[len(newest) // 2]
    odd = [rank for rank in members if newest[rank] != most]
    usual = [rank for rank in members if newest[rank] == most]
    if len(odd) != 1 or len(usual) < 2:
        return None
    witnesses = usual[:3]
    added = [find_shift(case.history, step.group, odd[0], rank) for rank in witnesses]
    left = [find_shift(case.history, step.group, rank, odd[0]) for rank in witnesses]
    # The counts alone do not tell which: a host runs ahead of what its device waits in.
    if added[0] is not None and all(added) and likelier_added(added[0], left[0]):
        return blame_extra(case, (odd[0],), added[0], step)
    if newest[odd[0]] < most and left[0] is not None and all(left):
        return blame_skipped(case, (odd[0],), left[0], step)
    return None
