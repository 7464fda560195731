"""Ranks that came with another operation, size or type: from a mismatch to an accusation."""

from __future__ import annotations

from keepstep.diagnosis import words
from keepstep.diagnosis.case import Blame, Case, capital, from_site
from keepstep.diagnosis.divergence import find_shift, likelier_added
from keepstep.diagnosis.ends import Ends
from keepstep.diagnosis.mismatch import Mismatch, differences
from keepstep.diagnosis.order import blame_ahead, blame_extra, blame_skipped
from keepstep.diagnosis.programs import is_ahead
from keepstep.diagnosis.verdict import Confidence, Fault
from keepstep.diagnosis.waits import Step


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
            f"{capital(words.ranks(others))} called {usual.operation.name}"
            f" {words.tensors(usual.operation)}".rstrip()
            + from_site(usual, odd)
            + "."
        ]
        evidence += [
            f"Rank {rank} called {entry.operation.name} {words.tensors(entry.operation)}".rstrip()
            + from_site(entry, usual)
            + "."
            for rank in mismatch.odd
            for entry in [mismatch.entries[rank]]
        ]
        if mismatch.why:
            evidence.append(capital(mismatch.why) + ".")
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
        + from_site(entries[rank])
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
    if len(odd) == 1 and is_ahead(case.history, rank, step.group, step.sequence, others):
        return blame_ahead(case, step, rank, others)
    for other in others[:2]:
        extra = find_shift(case.history, step.group, rank, other)
        skipped = find_shift(case.history, step.group, other, rank)
        if extra is not None and likelier_added(extra, skipped):
            return blame_extra(case, odd, extra, step)
        if skipped is not None:
            return blame_skipped(case, odd, skipped, step)
    return None
