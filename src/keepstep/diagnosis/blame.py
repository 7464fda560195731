"""From where the waiting ends to who is to blame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from keepstep.diagnosis import words
from keepstep.diagnosis.divergence import (
    Shift,
    broke_habit,
    called_before,
    find_disorder,
    find_shift,
)
from keepstep.diagnosis.evidence import Evidence, Life
from keepstep.diagnosis.frontier import Frontier
from keepstep.diagnosis.history import History
from keepstep.diagnosis.mismatch import Mismatch, differences, find_mismatch
from keepstep.diagnosis.stacks import call_site
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Lack, Meeting, Node, Step, Waits, ends, find_waits
from keepstep.recorder.meaning import MEANINGS
from keepstep.recorder.model import Entry, State

NAMED_TOGETHER = 8  # ranks of one stuck collective that a verdict still names as suspects
BAD_ENDS = (Life.DEAD, Life.CLEAN_EXIT, Life.STOPPED, Life.UNRESPONSIVE)


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


@dataclass(slots=True)
class Ends:
    """Where the waiting ends, sorted by what is found there."""

    absent: list[int] = field(default_factory=list)  # ranks that wait for nothing
    device: dict[int, Step] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    loops: list[list[Node]] = field(default_factory=list)
    full: list[Step] = field(default_factory=list)  # every member came, none is known to be stuck


def find_ends(case: Case) -> Ends:
    """Follow the graph to its ends."""
    found = Ends()
    meetings = case.waits.meetings
    roots: set[Node] = set()
    differing: dict[Step, Mismatch] = {}
    for step, meeting in meetings.items():
        mismatch = find_mismatch(case.history, step, meeting)
        if mismatch is not None:
            differing[step] = mismatch
            roots.add(step)
        for rank in _stuck_on_device(case, step, meeting):
            found.device.setdefault(rank, step)
            roots.add(rank)
    for component in ends(case.waits, roots):
        (first, *others) = component
        if others:
            found.loops.append(component)
        elif isinstance(first, Step):
            if first in differing:
                found.mismatches.append(differing[first])
            else:
                found.full.append(first)
        elif first not in found.device:
            found.absent.append(first)
    found.absent.sort()
    found.full.sort()
    found.mismatches.sort(key=lambda mismatch: mismatch.step)
    return found


def _stuck_on_device(case: Case, step: Step, meeting: Meeting) -> list[int]:
    """Ranks that never finished what peers finished with their help, and nothing later either."""
    if not meeting.finished or meeting.lacking(Lack.ABSENT, Lack.SILENT) or step.transfer:
        return []
    entries = [entry for entry in meeting.waiting.values() if entry is not None]
    if any("to_all" in e.operation.name or "toall" in e.operation.name for e in entries):
        return []  # ranks with less to exchange finish earlier
    stuck = []
    for rank, entry in sorted(meeting.waiting.items()):
        standing = case.frontier.standings[rank]
        if standing.proven and entry is not None and standing.newest_finished < entry.record:
            stuck.append(rank)
    return stuck


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
                waiting=_dependents(case, ranks),
                evidence=tuple(
                    f"Rank {rank} finished nothing that it began at or after record"
                    f" {_record(meeting.waiting[rank])}."
                    for rank in sorted(ranks)
                ),
            )
        )
    return blames


def _record(entry: Entry | None) -> int:
    return -1 if entry is None else entry.record


def _dependents(case: Case, ranks: Iterable[int]) -> tuple[int, ...]:
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


def blame_mismatches(case: Case, found: Ends) -> list[Blame]:
    """Ranks that asked for another operation, size or type than the others at the same place."""
    blames = []
    for mismatch in found.mismatches:
        step = mismatch.step
        others = tuple(rank for rank in sorted(mismatch.entries) if rank not in mismatch.odd)
        if not mismatch.decided:
            blames.append(_undecided(case, mismatch))
            continue
        shifted = _as_shift(case, step, mismatch.odd, others)
        if shifted is not None:
            blames.append(shifted)
            continue
        odd = mismatch.entries[mismatch.odd[0]]
        usual = mismatch.usual()
        evidence = [
            f"{_capital(words.ranks(others))} called {usual.operation.name}"
            f" {words.tensors(usual.operation)}".rstrip()
            + _from(usual, odd)
            + "."
        ]
        evidence += [
            f"Rank {rank} called {entry.operation.name} {words.tensors(entry.operation)}".rstrip()
            + _from(entry, usual)
            + "."
            for rank in mismatch.odd
            for entry in [mismatch.entries[rank]]
        ]
        if mismatch.why:
            evidence.append(_capital(mismatch.why) + ".")
        blames.append(
            Blame(
                mismatch.odd,
                Fault.MISMATCH,
                f"came to {case.place(step, usual)} with {words.join(differences(odd, usual))}",
                step,
                waiting=others,
                confidence=Confidence.MEDIUM if mismatch.why else Confidence.HIGH,
                evidence=tuple(evidence),
            )
        )
    return blames


def _undecided(case: Case, mismatch: Mismatch) -> Blame:
    first, *rest = sorted(mismatch.entries)
    entries = mismatch.entries
    evidence = tuple(
        f"Rank {rank} called {entries[rank].operation.name}"
        f" {words.tensors(entries[rank].operation)}".rstrip()
        + _from(entries[rank])
        + "."
        for rank in (first, *rest)
    )
    return Blame(
        mismatch.odd,
        Fault.MISMATCH,
        f"disagree about {case.place(mismatch.step)}",
        mismatch.step,
        confidence=Confidence.LOW,
        evidence=evidence,
        would_decide=(
            "Which of the ranks is wrong: no majority, and neither their past nor other groups"
            " tell. Compare the code at the named lines.",
        ),
    )


def _as_shift(
    case: Case, step: Step, odd: tuple[int, ...], others: tuple[int, ...]
) -> Blame | None:
    """Whether the odd ranks made one call more or less than the others, some time before."""
    if not others or step.transfer:
        return None
    rank = odd[0]
    for other in others[:2]:
        extra = find_shift(case.history, step.group, rank, other)
        skipped = find_shift(case.history, step.group, other, rank)
        if extra is not None and (skipped is None or extra.sequence >= skipped.sequence):
            return blame_extra(case, odd, extra, step)
        if skipped is not None:
            return blame_skipped(case, odd, skipped, step)
    return None


def blame_extra(
    case: Case, ranks: tuple[int, ...], shift: Shift, step: Step, waiting: tuple[int, ...] = ()
) -> Blame:
    """Ranks that made a call that the others do not have."""
    entry = shift.entry
    theirs = case.history.entry(shift.behind, step.group, shift.sequence)
    lines = [
        f"Rank {shift.ahead} made call {shift.sequence} of group {case.group(step)}"
        f" ({entry.operation.name}{_from(entry, theirs)}); rank {shift.behind} made no such call"
        + (f" and has {theirs.operation.name}{_from(theirs, entry)} there." if theirs else "."),
        f"From there on the calls of rank {shift.ahead} agree with those of rank {shift.behind}"
        f" {shift.amount} earlier.",
    ]
    return Blame(
        ranks,
        Fault.EXTRA_COLLECTIVE,
        f"entered {entry.operation.name} {shift.sequence} of group {case.group(step)}, which"
        f" {words.ranks(_others(case, step, ranks))} did not call",
        step,
        waiting=waiting or _others(case, step, ranks),
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
        waiting=_others(case, step, ranks),
        confidence=Confidence.HIGH if entry.stack else Confidence.MEDIUM,
        evidence=(
            f"Rank {shift.ahead} made call {shift.sequence} of group {case.group(step)}"
            f" ({entry.operation.name}{_from(entry)}); {words.ranks(ranks)} did not.",
            f"From there on the calls of rank {shift.ahead} agree with those of"
            f" {words.ranks(ranks)} {shift.amount} earlier.",
        ),
    )


def _others(case: Case, step: Step, ranks: Iterable[int]) -> tuple[int, ...]:
    members = case.frontier.roster.groups[step.group].members
    return tuple(sorted(set(members) - set(ranks)))


def _from(entry: Entry, other: Entry | None = None) -> str:
    site = call_site(entry.stack, other.stack if other is not None else ())
    return f" at {site}" if site else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def blame_absent(case: Case, found: Ends) -> list[Blame]:
    """Ranks that others wait for and that wait for nobody."""
    guilty = _narrow_silent(case, found.absent)
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


def _narrow_silent(case: Case, absent: list[int]) -> list[int]:
    """Of several ranks without a dump that one operation lacks, keep those that explain most."""
    silent = [rank for rank in absent if rank not in case.frontier.dumps]
    if len(silent) < 2:
        return absent
    candidates = [
        set(meeting.lacking(Lack.SILENT)) & set(silent)
        for meeting in case.waits.meetings.values()
        if not meeting.lacking(Lack.ABSENT)
    ]
    sets = [ranks for ranks in candidates if ranks]
    certain = {rank for ranks in sets if len(ranks) == 1 for rank in ranks}
    observed = {rank for rank in silent if case.life(rank) in BAD_ENDS}
    kept: set[int] = set(certain)
    for ranks in sets:
        if not ranks & kept:
            kept |= (ranks & observed) or _most_often(ranks, sets)
    return sorted((set(absent) - set(silent)) | kept)


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
    evidence = []
    for rank in ranks:
        evidence.append(_where(case, step, rank))
    if unsure:
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
    decide = (
        "Several ranks left no dump: the stacks or the exit codes of"
        f" {words.ranks(rivals)} tell which of them did not come.",
    )
    return Blame(
        ranks,
        fault,
        f"{what} {case.place(step)}",
        step,
        waiting=waiting,
        confidence=confidence,
        evidence=tuple(evidence),
        would_decide=decide if unsure else (),
    )


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
    last = f"{position.last.operation.name} {position.enqueued}" if position.last else ""
    site = call_site(position.last.stack) if position.last else ""
    return (
        f"The last call of rank {rank} in group {case.group(step)} is"
        f" {last or f'number {position.enqueued}'}"
        + (f" at {site}" if site else "")
        + ", and nothing of it is pending that others do not have."
    )


def explain_absence(case: Case, step: Step, absent: tuple[int, ...]) -> Blame | None:
    """Whether those who wait are the odd ones: they made a call that the absent do not have."""
    meeting = case.waits.meetings[step]
    waiting = tuple(sorted(set(meeting.waiting) | meeting.finished))
    with_dump = case.history.with_dump(absent)
    if step.transfer or not waiting:
        return None
    lacking = meeting.lacking(Lack.ABSENT, Lack.SILENT)
    minority = len(waiting) < len(lacking)
    if with_dump:
        shift = find_shift(case.history, step.group, waiting[0], with_dump[0])
        if shift is not None:
            if minority or (len(waiting) == len(lacking) and not shift.usual):
                return blame_extra(case, waiting, shift, step)
            return blame_skipped(case, absent, shift, step)
        disorder = None
        if minority:
            members = case.frontier.roster.groups[step.group].members
            disorder = find_disorder(case.history, step.group, step.sequence - 1, members)
        if disorder is not None and disorder.rank in waiting:
            return _extra_by_order(case, step, disorder.rank, disorder.sequence)
    entry = next((e for _, e in sorted(meeting.waiting.items()) if e is not None), None)
    if not minority or entry is None or len(lacking) < 2:
        return None
    known = [called_before(case.history, step.group, rank, entry) for rank in with_dump]
    left = all(case.life(rank) is Life.CLEAN_EXIT for rank in lacking)
    new = bool(known) and all(answer is False for answer in known)
    own = called_before(case.history, step.group, waiting[0], entry) if left else None
    if new or (left and own is not None and _only_call(case, step, waiting[0], entry)):
        return Blame(
            waiting,
            Fault.EXTRA_COLLECTIVE,
            f"entered {case.place(step)}, which {words.ranks(lacking)}"
            + (" left without" if left else " never called"),
            step,
            waiting=tuple(lacking),
            confidence=Confidence.MEDIUM,
            evidence=(
                f"No other call of group {case.group(step)} comes from{_from(entry)[3:]}."
                if entry.stack
                else f"{_capital(words.ranks(lacking))} never made this call.",
            ),
        )
    return None


def _only_call(case: Case, step: Step, rank: int, entry: Entry) -> bool:
    """Whether a rank makes this call for the first time."""
    calls = case.history.of(rank, step.group).values()
    return not any(o.record < entry.record and o.stack == entry.stack for o in calls)


def _extra_by_order(case: Case, step: Step, rank: int, sequence: int) -> Blame:
    entry = case.history.entry(rank, step.group, sequence)
    name = entry.operation.name if entry is not None else "collective"
    return Blame(
        (rank,),
        Fault.EXTRA_COLLECTIVE,
        f"entered {name} {sequence} of group {case.group(step)} before the others had come to it",
        step,
        waiting=_others(case, step, (rank,)),
        confidence=Confidence.MEDIUM,
        evidence=(
            f"Rank {rank} made call {sequence} of group {case.group(step)} after another number of"
            " calls in its other groups than the ranks that share them.",
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
    return _capital("; ".join(parts)) + "."


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
    for step in by_size:
        members = case.frontier.roster.groups[step.group].members
        disorder = find_disorder(case.history, step.group, step.sequence, members)
        if disorder is not None:
            return _out_of_order(case, step, disorder.rank)
    waiting = sorted({rank for step in steps for rank in case.waits.meetings[step].waiting})
    broken = {rank: broke_habit(case.history, rank, _head(case, rank)) for rank in waiting}
    breakers = [rank for rank, answer in broken.items() if answer]
    if len(breakers) == 1 and any(answer is False for answer in broken.values()):
        return _out_of_order(case, case.waits.of[breakers[0]][0], breakers[0])
    return None


def _head(case: Case, rank: int) -> Entry | None:
    return case.waits.meetings[case.waits.of[rank][0]].waiting[rank]


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
    shift = find_shift(case.history, step.group, odd[0], usual[0])
    if shift is not None and newest[odd[0]] > most:
        return blame_extra(case, (odd[0],), shift, step)
    left = find_shift(case.history, step.group, usual[0], odd[0])
    if left is not None and newest[odd[0]] < most:
        return blame_skipped(case, (odd[0],), left, step)
    return None


def _out_of_order(case: Case, step: Step, rank: int) -> Blame:
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
        waiting=_dependents(case, (rank,)),
        confidence=Confidence.MEDIUM,
        evidence=(
            f"Rank {rank} came to {case.place(step, entry)} after another number of calls in its"
            " other groups than the ranks that share them, or than in its own past.",
        ),
    )


def blame_full(case: Case, found: Ends) -> Blame | None:
    """A collective that every member entered and that others wait behind."""
    if len(found.full) != 1:
        return None
    (step,) = found.full
    meeting = case.waits.meetings[step]
    members = tuple(sorted(meeting.waiting))
    outside = set(case.waits.of) - set(members)
    if not outside or len(members) > NAMED_TOGETHER:
        return None
    started = [
        rank
        for rank, entry in sorted(meeting.waiting.items())
        if entry is not None and entry.state is State.STARTED
    ]
    evidence = [
        f"Every member entered {case.place(step)} with the same arguments, and none completed it.",
        f"{_capital(words.ranks(outside))} wait behind it.",
    ]
    named = members
    if started and len(started) < len(members):
        named = tuple(rank for rank in members if rank not in started)
        evidence.append(
            f"The device of {words.ranks(started)} has started it, that of {words.ranks(named)}"
            " has not."
        )
    return Blame(
        named,
        Fault.DEVICE,
        f"entered {case.place(step)} and never completed it",
        step,
        waiting=tuple(sorted(outside)),
        confidence=Confidence.LOW,
        evidence=tuple(evidence),
        would_decide=(
            f"Which device is stuck: the dumps of {words.ranks(members)} look alike. Stacks with"
            " native frames, the RAS counts of NCCL, device logs (Xid) or a second set of dumps"
            " tell.",
        ),
    )


def open_case(evidence: Evidence, frontier: Frontier) -> Case:
    """Draw the graph of a frontier and put everything together."""
    return Case(evidence, frontier, find_waits(frontier), History(frontier))
