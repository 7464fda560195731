"""Can the judge be believed? It must see a known difference, and none where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.canary.cell import Role
from keepstep.canary.verdict import CellVerdict, Control, SoftResult, Verdict

_PLANTED_IN = "step"  # the metric that the planted slowdown and gain are about


def control_of(cell: CellVerdict, opposite: Sequence[SoftResult]) -> Control:
    """Return what a control cell proves.

    Args:
        cell: Its verdict as if it were a candidate.
        opposite: For A/A cells, whether the reference is worse.
    """
    verdict, reason = _answer(cell, opposite)
    return Control(name=cell.role.value, cell=cell.cell, verdict=verdict, reason=reason)


def _answer(cell: CellVerdict, opposite: Sequence[SoftResult]) -> tuple[Verdict, str]:
    if cell.verdict is Verdict.NOT_RUN:
        return Verdict.NOT_RUN, cell.reason
    for gate in cell.gates:
        if gate.verdict is not Verdict.PASS and not _is_planted(cell.role, gate.gate):
            return gate.verdict, f"{gate.gate}: {gate.seen}; wanted {gate.wanted}"
    if cell.role is Role.SLOWER:
        return _slower(cell)
    if cell.role is Role.FASTER:
        return _faster(cell)
    return _same(cell, opposite)


def _is_planted(role: Role, gate: str) -> bool:
    """A planted slowdown may add threads or warnings of the probe; numbers stay the same."""
    return role is not Role.SAME and gate in ("leftovers", "warnings")


def _slower(cell: CellVerdict) -> tuple[Verdict, str]:
    found = _metric(cell.soft, _PLANTED_IN)
    if found is None or found.ratio is None:
        return Verdict.INCONCLUSIVE, "the planted slowdown was not measured"
    if found.verdict is Verdict.FAIL:
        return Verdict.PASS, f"the planted slowdown is found: {found.reason}"
    if found.verdict is Verdict.PASS:
        return Verdict.FAIL, f"the planted slowdown is not found: {found.reason}"
    return Verdict.INCONCLUSIVE, found.reason


def _faster(cell: CellVerdict) -> tuple[Verdict, str]:
    lost = [each for each in cell.soft if each.judged and each.verdict is Verdict.FAIL]
    if lost:
        return Verdict.FAIL, f"a planted gain is called a loss: {lost[0].reason}"
    found = _metric(cell.soft, _PLANTED_IN)
    if found is None or found.ratio is None:
        return Verdict.INCONCLUSIVE, "the planted gain was not measured"
    return Verdict.PASS, "the planted gain is not called a loss"


def _same(cell: CellVerdict, opposite: Sequence[SoftResult]) -> tuple[Verdict, str]:
    differing = [
        each for each in (*cell.soft, *opposite) if each.judged and each.verdict is Verdict.FAIL
    ]
    if differing:
        return Verdict.FAIL, f"two equal arms differ: {differing[0].reason}"
    judged = [each for each in cell.soft if each.judged]
    if unknown := [each for each in judged if each.noise is None]:
        return Verdict.INCONCLUSIVE, f"{unknown[0].metric}: {unknown[0].reason}"
    if not judged:
        return Verdict.PASS, "two equal arms pass every gate; the plan judges no metric"
    # That the noise is too large for a margin is no reason to disbelieve: it is in each interval.
    noise = max(each.noise or 0.0 for each in judged)
    return Verdict.PASS, f"two equal arms do not differ; equal runs vary by {100 * noise:.1f} %"


def _metric(soft: Sequence[SoftResult], name: str) -> SoftResult | None:
    return next((each for each in soft if each.metric == name), None)
