"""Ranks whose host came and whose device did not finish."""

from __future__ import annotations

from keepstep.diagnosis import words
from keepstep.diagnosis.case import NAMED_TOGETHER, Blame, Case, capital, dependents, record_of
from keepstep.diagnosis.ends import Ends
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Step
from keepstep.recorder.model import State


def blame_device(case: Case, found: Ends) -> list[Blame]:
    """Ranks that entered and never completed what their peers completed."""
    by_step: dict[Step, list[int]] = {}
    for rank, step in found.device.items():
        by_step.setdefault(step, []).append(rank)
    blames = []
    for step, ranks in sorted(by_step.items()):
        meeting = case.waits.meetings[step]
        finished = tuple(sorted(meeting.finished))
        blames.append(
            Blame(
                tuple(sorted(ranks)),
                Fault.DEVICE,
                f"entered {case.place(step)} and never completed it, though"
                f" {words.ranks(finished)} did",
                step,
                waiting=dependents(case, ranks),
                evidence=tuple(
                    f"Rank {rank} finished nothing that it began at or after record"
                    f" {record_of(meeting.waiting[rank])}."
                    for rank in sorted(ranks)
                ),
            )
        )
    return blames


def blame_full(case: Case, found: Ends) -> Blame | None:
    """A collective that every member entered and that others wait behind.

    Several of them at once have a cause in what they share: one device that is in all of them.
    """
    if not found.full or any(case.waits.meetings[step].finished for step in found.full):
        return None
    sets = [set(case.waits.meetings[step].waiting) for step in found.full]
    if any(step.transfer and len(ranks) < 2 for step, ranks in zip(found.full, sets, strict=True)):
        return None
    shared = tuple(sorted(set.intersection(*sets)))
    outside = tuple(sorted(set(case.waits.of) - set(shared)))
    if not shared or not outside or len(shared) > NAMED_TOGETHER:
        return None
    step = found.full[0]
    meeting = case.waits.meetings[step]
    places = words.join([case.place(step) for step in found.full[:4]])
    evidence = [
        f"Every member entered {places} with the same arguments, and none completed"
        f" {'it' if len(sets) == 1 else 'them'}.",
        f"{capital(words.ranks(outside))} {words.verb(outside, 'waits', 'wait')} behind that.",
    ]
    started = [
        rank
        for rank, entry in sorted(meeting.waiting.items())
        if entry is not None and entry.state is State.STARTED
    ]
    late = tuple(rank for rank in shared if rank not in started)
    if started and late:
        evidence.append(
            f"The device of {words.ranks(started)} has started {case.place(step)}, that of"
            f" {words.ranks(late)} has not."
        )
    named = late if started and late else shared
    return Blame(
        named,
        Fault.DEVICE,
        f"entered {places} and never completed {'it' if len(sets) == 1 else 'them'}",
        step,
        waiting=outside,
        confidence=Confidence.LOW,
        evidence=tuple(evidence),
        would_decide=(
            f"Which device is stuck: the dumps of {words.ranks(sets[0])} look alike. Stacks with"
            " native frames, the RAS counts of NCCL, device logs (Xid) or a second set of dumps"
            " tell.",
        ),
    )
