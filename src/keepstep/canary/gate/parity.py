"""Does it compute the same? Loss and gradient norm of the first ten steps, on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keepstep.canary.gate.case import Case, settle
from keepstep.canary.record import Outcome, RunRecord
from keepstep.canary.verdict import GateResult

FIRST_STEPS = 10  # as many as PyTorch compared when it changed the default backend (pytorch#192281)
Seen = dict[tuple[int, int, str], float | None]  # by rank, step and what it is


def parity(case: Case) -> GateResult | None:
    """Losses and gradient norms are those of the reference, within the tolerance of the plan."""
    tolerance = case.plan.parity.tolerance
    runs = [(f"pair {run.pair}", _values(run)) for run in case.ended]
    problems = [text for where, values in runs for text in _gaps(values, where)]
    kept = [run for run in case.reference_runs if run.outcome is Outcome.COMPLETE]
    reference = [(f"the reference, pair {run.pair}", _values(run)) for run in kept]
    whole = reference + runs if case.reference else runs
    if whole:
        problems += [
            text
            for where, values in whole[1:]
            for text in _differences(whole[0], (where, values), tolerance)
        ]
    exact = "to the last bit" if not tolerance else f"within {tolerance:g} (as the plan says)"
    return settle(
        case,
        "parity",
        problems,
        seen=f"equal {exact} on every rank",
        wanted=f"loss and gradient norm of the first {FIRST_STEPS} steps equal {exact}",
        mend="find the first step that differs: before it the states were the same; if kernels "
        "changed on purpose, put a tolerance and its reason into parity in the plan",
        compares=True,
    )


def _values(run: RunRecord) -> Seen:
    return {
        (rank.rank, number, what): value
        for rank in run.ranks
        for number, step in enumerate(rank.steps[:FIRST_STEPS])
        for what, value in (("loss", step.loss), ("gradient norm", step.gradient_norm))
    }


def _gaps(values: Seen, where: str) -> Iterator[str]:
    """Every rank has gradients; a loss may be seen by one rank only, as in a pipeline."""
    if not values:
        yield f"{where}: no step was seen"
    steps = {number for _, number, _ in values}
    for number in sorted(steps):
        of_step = {key: value for key, value in values.items() if key[1] == number}
        for (rank, _, what), value in of_step.items():
            if what == "gradient norm" and value is None:
                yield f"{where}, step {number}: no gradient norm of rank {rank}"
        if all(value is None for (_, _, what), value in of_step.items() if what == "loss"):
            yield f"{where}, step {number}: no loss on any rank"


def _differences(
    first: tuple[str, Seen], other: tuple[str, Seen], tolerance: float
) -> Sequence[str]:
    for key in sorted(first[1].keys() | other[1].keys()):
        here, there = first[1].get(key), other[1].get(key)
        if not _equal(here, there, tolerance):
            rank, number, what = key
            return [
                f"{what} of step {number} on rank {rank}: {_said(here)} in {first[0]}, "
                f"{_said(there)} in {other[0]}"
            ]
    return []


def _equal(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _said(value: float | None) -> str:
    return "missing" if value is None else repr(value)
