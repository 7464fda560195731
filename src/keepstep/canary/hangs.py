"""What runs without a hang say about rare hangs: less than one would like."""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.canary.record import Outcome, RunRecord


def hang_bound(runs: Sequence[RunRecord]) -> str:
    """Return how many runs hung and, when none did, what rate that rules out.

    With a rate p of hangs, n runs pass without one with probability (1 - p)**n; the rate at which
    that is 5 % is 1 - 0.05**(1/n): 14 % for 20 runs, 1 % for 300.
    """
    counted = [run for run in runs if run.outcome is not Outcome.NOT_RUN]
    hung = sum(run.outcome is Outcome.HANG for run in counted)
    if not counted:
        return ""
    text = f"{hung} of {len(counted)} runs hung"
    if hung:
        return text
    bound = 100 * (1 - 0.05 ** (1 / len(counted)))
    said = f"{bound:.0f}" if bound > 0.95 else f"{bound:.1g}"
    return f"{text}: under {said} % of runs hang (95 % confidence)"
