"""Everybody came, or nobody waits: the answers in which no rank stands out."""

from __future__ import annotations

from keepstep.diagnosis import words
from keepstep.diagnosis.case import Case
from keepstep.diagnosis.ends import Ends
from keepstep.diagnosis.mismatch import all_to_all_balance
from keepstep.diagnosis.observed import behind_in_counts
from keepstep.diagnosis.verdict import Confidence, Fault, Outcome, Verdict
from keepstep.diagnosis.waits import Meeting, Step

KNOWN_DEFECTS = {
    # marin-community/marin#7344: 7 of 7 runs wedged, 20,000 steps without a hang on 2.30.7.
    "2.28.9": "this version is known to hang by itself; a rank that lags is then a victim.",
}


def nothing_pending(case: Case) -> Verdict:
    """Nobody is in a collective that has not finished."""
    silent = sorted(case.frontier.everyone - set(case.frontier.dumps))
    if silent:
        return Verdict(
            outcome=Outcome.UNKNOWN,
            confidence=Confidence.LOW,
            headline=f"no rank waits in the dumps, but {words.ranks(silent)} left none",
            would_decide=(f"The dumps or the exits of {words.ranks(silent)}.",),
        )
    return Verdict(
        outcome=Outcome.HEALTHY,
        headline="no rank waits for another: every collective in the dumps has finished",
    )


def everybody_inside(case: Case, found: Ends) -> Verdict:
    """Every end of the graph is a collective that all its members entered."""
    steps = found.full
    if job_moves(case, found):
        return Verdict(
            outcome=Outcome.HEALTHY,
            confidence=Confidence.MEDIUM,
            headline="no rank is missing anywhere, and several independent collectives are under"
            " way on the same ranks: the job was moving",
            evidence=(
                "Ranks finished operations that they began after the ones that are still pending.",
            ),
            would_decide=("A second set of dumps, half a minute later.",),
        )
    late = {step: m for step, m in case.waits.meetings.items() if m.finished}
    if late:
        return _different_places(case, late)
    counts = (*behind_in_counts(case.evidence.observations).values(), *_known_defects(case))
    places = [case.place(step) for step in steps[:4]]
    pending_groups = {step.group for step in case.waits.meetings}
    if len(pending_groups) > 1:
        return Verdict(
            outcome=Outcome.NO_RANK,
            fault=Fault.DEADLOCK,
            confidence=Confidence.LOW,
            headline="every rank came to every collective, and none finishes: communicators block"
            f" each other on the device, or the library or the network is stuck"
            f" (in {words.join(places)})",
            evidence=("No rank is behind in any group, and all arguments agree.", *counts),
            would_decide=(
                "A second set of dumps tells stuck from moving; device logs (Xid), link counters"
                " and the RAS state of NCCL tell device from network.",
            ),
            next_steps=(
                "Look for several communicators used at once without an order between them"
                " (streams, async_op=True).",
            ),
        )
    return Verdict(
        outcome=Outcome.UNKNOWN,
        confidence=Confidence.LOW,
        evidence=counts,
        headline=f"all members are inside {words.join(places)} and agree about it; the dumps do"
        " not tell whether it is stuck, nor where",
        would_decide=(
            "A second set of dumps tells stuck from moving; device logs (Xid), link counters and"
            " the RAS state of NCCL name the device.",
        ),
    )


def job_moves(case: Case, found: Ends) -> bool:
    """Whether ranks are in several collectives at once that nothing orders.

    One stuck collective holds, or does not hold, the later ones of its ranks. Two that wait for
    nothing, on one rank that finished later operations, are a snapshot of a running job.
    """
    ends_of: dict[int, int] = {}
    for step in found.full:
        for rank, entry in case.waits.meetings[step].waiting.items():
            standing = case.frontier.standings[rank]
            if entry is not None and standing.newest_finished > entry.record:
                ends_of[rank] = ends_of.get(rank, 0) + 1
    shared = dict.fromkeys(case.waits.of, 0)
    for step in found.full:
        for rank in case.waits.meetings[step].waiting:
            shared[rank] += 1
    return any(number > 1 and ends_of.get(rank, 0) > 0 for rank, number in shared.items())


def _different_places(case: Case, late: dict[Step, Meeting]) -> Verdict:
    """Ranks that began everything show as pending what others show as finished."""
    exchanges = [step for step, meeting in late.items() if _is_exchange(meeting)]
    groups = {step.group for step in exchanges}
    if len(exchanges) == len(late) > 1 and len(groups) == 1:
        step = min(exchanges)
        members = case.frontier.roster.groups[step.group].members
        given, taken = all_to_all_balance(case.history, step, members)
        return Verdict(
            outcome=Outcome.NO_RANK,
            fault=Fault.MISMATCH,
            confidence=Confidence.LOW,
            headline=f"the ranks of group {case.group(step)} stand in different all-to-alls, first"
            f" {case.name(step)}: their plans of who sends how much differ",
            evidence=(
                f"In {case.name(step)} all ranks give {given} elements and take {taken}"
                + (", which cannot match." if given != taken else "."),
            ),
            would_decide=(
                "The split sizes of every rank: the recorder does not write them, so log them.",
            ),
        )
    ranks = sorted({rank for meeting in late.values() for rank in meeting.waiting})
    return Verdict(
        outcome=Outcome.UNKNOWN,
        confidence=Confidence.LOW,
        headline=f"no rank is missing anywhere; {words.ranks(ranks)}"
        f" {words.verb(ranks, 'shows', 'show')} as pending what others have finished: either a"
        " recorder is late, or a device is stuck",
        would_decide=("A second set of dumps, half a minute later.",),
    )


def _is_exchange(meeting: Meeting) -> bool:
    return any(e is not None and "to_all" in e.operation.name for e in meeting.waiting.values())


def _known_defects(case: Case) -> list[str]:
    """Say when the communication library itself is known to hang."""
    libraries = {dump.library for dump in case.frontier.dumps.values()}
    return [
        f"NCCL {version}: {text}" for version, text in KNOWN_DEFECTS.items() if version in libraries
    ]
