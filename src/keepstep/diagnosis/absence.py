"""Ranks that others wait for and that wait for nobody."""

from __future__ import annotations

from keepstep.diagnosis import words
from keepstep.diagnosis.case import Blame, Case, capital, from_site
from keepstep.diagnosis.divergence import called_before, find_disorder, find_shift
from keepstep.diagnosis.ends import Ends
from keepstep.diagnosis.evidence import Life
from keepstep.diagnosis.habits import only_slip
from keepstep.diagnosis.order import blame_extra, blame_order, blame_skipped, blame_slip
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Lack, Meeting, Step
from keepstep.recorder.meaning import MEANINGS
from keepstep.recorder.model import Entry

BAD_ENDS = (Life.DEAD, Life.CLEAN_EXIT, Life.STOPPED, Life.UNRESPONSIVE)


def blame_absent(case: Case, found: Ends) -> list[Blame]:
    """Ranks that others wait for and that wait for nobody."""
    guilty = _narrow_silent(case, _without_doubtful(case, found.absent))
    if not guilty:
        return []
    together: dict[tuple[Step, Fault], list[int]] = {}
    blames: list[Blame] = []
    steps: dict[int, Step] = {}
    for rank in guilty:
        steps[rank] = _missed(case, rank)
    explained: set[int] = set()
    for step in sorted(set(steps.values())):
        absent = tuple(rank for rank in guilty if steps[rank] == step)
        other_reading = explain_absence(case, step, absent)
        if other_reading is not None:
            blames.append(other_reading)
            explained.update(absent)
    for rank in guilty:
        if rank not in explained:
            together.setdefault((steps[rank], _fault_of(case, rank)), []).append(rank)
    for (step, fault), ranks in sorted(together.items()):
        blames.append(_stalled(case, step, fault, tuple(ranks)))
    return blames


def _without_doubtful(case: Case, absent: list[int]) -> list[int]:
    """Leave out ranks of which only one of several is needed, and nobody knows which."""
    needed = {
        rank
        for meeting in case.waits.meetings.values()
        for rank, lack in meeting.lacks.items()
        if lack in (Lack.ABSENT, Lack.SILENT)
    }
    doubtful = [rank for rank in absent if rank not in needed]
    return absent if len(absent) == 1 else [rank for rank in absent if rank not in doubtful]


def _narrow_silent(case: Case, absent: list[int]) -> list[int]:
    """Keep of the ranks without a dump those that are needed to explain the waiting.

    An operation that lacks a rank whose dump shows why needs no other explanation. Where several
    silent ranks could be it, those count that something else speaks against, then those that most
    operations lack.
    """
    silent = {rank for rank in absent if rank not in case.frontier.dumps}
    sets = [
        silent.intersection(meeting.lacks)
        for meeting in case.waits.meetings.values()
        if meeting.lacks and all(lack is Lack.SILENT for lack in meeting.lacks.values())
    ]
    observed = {rank for rank in silent if case.life(rank) in BAD_ENDS}
    kept = {rank for ranks in sets if len(ranks) == 1 for rank in ranks}
    for ranks in sets:
        if ranks and not ranks & kept:
            kept |= (ranks & observed) or _most_often(ranks, sets)
    return sorted((set(absent) - silent) | kept)


def _most_often(ranks: set[int], sets: list[set[int]]) -> set[int]:
    count = {rank: sum(rank in other for other in sets) for rank in ranks}
    top = max(count.values())
    return {rank for rank, number in count.items() if number == top}


def _missed(case: Case, rank: int) -> Step:
    """The operation in which most ranks wait for this one; the earliest of equals."""
    candidates = [
        (-len(meeting.waiting), step)
        for step, meeting in case.waits.meetings.items()
        if rank in meeting.lacks
    ]
    return min(candidates)[1]


def _fault_of(case: Case, rank: int) -> Fault:
    life = case.life(rank)
    if life is Life.DEAD:
        return Fault.DEAD
    if life is Life.CLEAN_EXIT:
        return Fault.UNEVEN_INPUTS
    return Fault.STALLED


def _stalled(case: Case, step: Step, fault: Fault, ranks: tuple[int, ...]) -> Blame:
    meeting = case.waits.meetings[step]
    waiting = tuple(sorted(meeting.waiting))
    silent = [rank for rank in ranks if rank not in case.frontier.dumps]
    rivals = [r for r in meeting.lacking(Lack.SILENT) if r in ranks and r in silent]
    unsure = len(rivals) > 1 and not all(case.life(rank) in BAD_ENDS for rank in rivals)
    guessed = not unsure and all(r in silent and case.life(r) not in BAD_ENDS for r in ranks)
    behind = _unheard(case, ranks) if guessed else []
    evidence = []
    for rank in ranks:
        evidence.append(_where(case, step, rank))
    if unsure or behind:
        confidence = Confidence.LOW
    elif (silent and fault is Fault.STALLED) or _unsure_of_waiting(case, meeting):
        confidence = Confidence.MEDIUM
    else:
        confidence = Confidence.HIGH
    what = {
        Fault.DEAD: "died and did not enter",
        Fault.UNEVEN_INPUTS: "left the training before",
    }.get(fault, "did not enter")
    if step.transfer:
        what = {Fault.STALLED: "did not come to"}.get(fault, what)
    decide: tuple[str, ...] = ()
    if unsure:
        decide = (
            "Several ranks left no dump: the stacks or the exit codes of"
            f" {words.ranks(rivals)} tell which of them did not come.",
        )
    elif behind:
        decide = (
            f"The dumps or the stacks of {words.ranks(ranks)}, and of {words.ranks(behind)}, which"
            f" left none either: {words.ranks(ranks)} may wait for"
            f" {words.verb(behind, 'it', 'one of them')}.",
        )
    return Blame(
        ranks,
        fault,
        f"{what} {case.place(step)}",
        step,
        waiting=waiting,
        confidence=confidence,
        evidence=tuple(evidence),
        would_decide=decide,
    )


def _unheard(case: Case, ranks: tuple[int, ...]) -> list[int]:
    """Other ranks of which nothing is known: a rank that left no dump may wait for one of them."""
    unknown = case.frontier.everyone - set(case.frontier.dumps) - set(ranks)
    return sorted(rank for rank in unknown if case.life(rank) is Life.UNKNOWN)


def _unsure_of_waiting(case: Case, meeting: Meeting) -> bool:
    """Whether the recorder of the waiting ranks cannot tell what finished from what timed out."""
    backends = {case.frontier.standings[rank].backend for rank in meeting.waiting}
    return any(not MEANINGS[backend].completed_shown for backend in backends)


def _where(case: Case, step: Step, rank: int) -> str:
    """What is known of where a rank is instead."""
    standing = case.frontier.standings.get(rank)
    if standing is None:
        observation = case.evidence.observations.get(rank)
        why = observation.missing_dump if observation is not None else ""
        return f"Rank {rank} left no dump" + (f": {why}." if why else ".")
    if step.transfer:
        return f"Rank {rank} has nothing pending, and its half of {case.name(step)} is not there."
    position = standing.positions.get(step.group)
    if position is None or position.enqueued is None:
        return f"Rank {rank} has no collective of group {case.group(step)} in its dump."
    if position.last is None:
        last = f"number {position.enqueued}"
    else:
        last = f"{position.last.operation.name} {position.enqueued}{from_site(position.last)}"
    waits = ", and it waits for nobody" if rank not in case.waits.of else ""
    return f"The last call of rank {rank} in group {case.group(step)} is {last}{waits}."


def explain_absence(case: Case, step: Step, absent: tuple[int, ...]) -> Blame | None:
    """Whether those who wait are the odd ones, or what the absent did instead of coming.

    Args:
        case: the case.
        step: what is waited in.
        absent: the ranks that did not come and wait for nobody.
    """
    meeting = case.waits.meetings[step]
    waiting = tuple(sorted(set(meeting.waiting) | meeting.finished))
    if step.transfer or not waiting:
        return None
    with_dump = case.history.with_dump(absent)
    if all(case.life(rank) is Life.DEAD for rank in absent):
        return None  # that explains it, however many they are
    left = [rank for rank in absent if case.life(rank) is Life.CLEAN_EXIT]
    minority = len(waiting) < len({*with_dump, *left})
    alone = len(waiting) < len(absent) and not with_dump and not left
    if with_dump:
        shift = find_shift(case.history, step.group, waiting[0], with_dump[0])
        if shift is not None:
            if minority or (len(waiting) == len(absent) and not shift.usual):
                return blame_extra(case, waiting, shift, step)
            return blame_skipped(case, absent, shift, step)
    if len(left) == len(absent):
        return _blame_few(case, step, waiting, absent) if minority else None
    if with_dump and len(waiting) <= len(absent):
        slip = only_slip(case.history, {*waiting, *with_dump})
        if slip is not None and case.group_of(slip.rank, slip.entry) == step.group:
            return blame_slip(case, slip, step)
    return _blame_few(case, step, waiting, absent) if minority or alone else None


def _blame_few(
    case: Case, step: Step, waiting: tuple[int, ...], absent: tuple[int, ...]
) -> Blame | None:
    """A few ranks wait for many that wait for nobody: did these stop, or did those go too far?"""
    meeting = case.waits.meetings[step]
    with_dump = case.history.with_dump(absent)
    members = case.frontier.roster.groups[step.group].members
    disorder = find_disorder(case.history, step.group, step.sequence - 1, members)
    if disorder is not None and disorder.rank in waiting:
        return blame_order(case, step, disorder.rank, disorder.sequence)
    entry = next((e for _, e in sorted(meeting.waiting.items()) if e is not None), None)
    left = all(case.life(rank) is Life.CLEAN_EXIT for rank in absent)
    if not with_dump and not left:
        return Blame(
            (),
            Fault.NONE,
            f"{words.ranks(waiting)} {words.verb(waiting, 'waits', 'wait')} in {case.place(step)}"
            f" for {words.ranks(absent)}, and none of these left a dump",
            step,
            confidence=Confidence.LOW,
            would_decide=(
                f"The stacks, exits or dumps of {words.ranks(absent)}: either they did not come, or"
                f" {words.ranks(waiting)} went further than the others.",
            ),
        )
    if entry is None:
        return None
    known = [called_before(case.history, step.group, rank, entry) for rank in with_dump]
    own = _made_before(case, step, waiting[0], entry)
    if any(known) or (left and own):
        return None
    return Blame(
        waiting,
        Fault.EXTRA_COLLECTIVE,
        f"entered {case.place(step)}, which {words.ranks(absent)}"
        + (" left without" if left else " did not call"),
        step,
        waiting=absent,
        confidence=Confidence.MEDIUM if left else Confidence.LOW,
        evidence=(
            f"{capital(words.ranks(absent))} wait for nobody"
            + (" and never made this call" if False in known else "")
            + f"; {words.ranks(waiting)} made it{from_site(entry)}.",
        ),
        would_decide=()
        if left
        else (f"The stacks of {words.ranks(absent)}: they may all have stopped before this call.",),
    )


def _made_before(case: Case, step: Step, rank: int, entry: Entry) -> bool:
    """Whether a rank made this call before, from the same place."""
    calls = case.history.of(rank, step.group).values()
    return any(o.record < entry.record and o.stack == entry.stack for o in calls)
