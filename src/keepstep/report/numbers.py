"""One line: did the new stack compute what the old one did, to the last bit?"""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.report.figures import count_text
from keepstep.report.model import Numbers, Rehearsal
from keepstep.report.summary import listed

_WHAT = "Losses and gradient norms, new stack against old"


def numbers_line(rehearsal: Rehearsal) -> str:
    """Return the answer; what has no record is named, and never counted as equal."""
    found = rehearsal.numbers
    if found is None:
        return f"{_WHAT}: this record does not say; the same command compares them."
    if not found:
        return f"{_WHAT}: not known, no cell of the new stack was run beside one of the old."
    missing = [each for each in found if each.missing]
    differ = [each for each in found if each.difference is not None]
    equal = [each for each in found if not each.missing and each.difference is None]
    parts = [_equal(equal, len(found))] if equal else []
    parts += [_different(differ)] if differ else []
    parts += [_unknown(missing)] if missing else []
    return f"{_WHAT}: {'; '.join(parts)}."


def _equal(equal: Sequence[Numbers], cells: int) -> str:
    which = f"in {len(equal)} of {count_text(cells, 'compared cell')}"
    steps = sorted({each.steps for each in equal})
    first = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    new = sum(each.runs for each in equal)
    old = sum({each.against: each.reference_runs for each in equal}.values())
    return (
        f"equal to the last bit {which}, on every rank in the first {first} steps of {old} runs of "
        f"the old stack and {new} of the new one"
    )


def _different(differ: Sequence[Numbers]) -> str:
    worst = max(differ, key=lambda each: each.difference or 0.0)
    return (
        f"not equal in {listed([each.cell for each in differ])}, where the largest relative "
        f"difference is {worst.difference:.3g} ({worst.where}"
        f"{f', {worst.cell}' if len(differ) > 1 else ''}) of the first {worst.steps} steps in "
        f"{worst.reference_runs} and {worst.runs} runs"
    )


def _unknown(missing: Sequence[Numbers]) -> str:
    reasons = list(dict.fromkeys(each.missing for each in missing))
    return f"not known in {listed([each.cell for each in missing])} ({listed(reasons)})"
