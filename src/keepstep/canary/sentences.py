"""Verdicts in one sentence each, for somebody who was woken up."""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.canary.cell import Cell, Role
from keepstep.canary.verdict import (
    CellVerdict,
    Control,
    GateResult,
    Judgement,
    SoftResult,
    Verdict,
)


def cell_reason(
    cell: Cell, verdict: Verdict, gates: Sequence[GateResult], soft: Sequence[SoftResult]
) -> str:
    """Return why a cell has its verdict."""
    for wanted in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        for gate in gates:
            if verdict is wanted and gate.verdict is wanted:
                return f"{gate.gate}: {gate.seen}; wanted {gate.wanted}"
        for each in soft:
            if verdict is wanted and each.judged and each.verdict is wanted:
                return f"{each.metric}: {each.reason}"
    if cell.role is Role.REFUSAL:
        return "refused, with the words that were wanted"
    if not cell.against:
        return "runs whole, and the same every time"
    judged = [each for each in soft if each.judged]
    if not judged:
        return f"as {cell.against} in every gate; the plan judges none of its metrics"
    closest = max(judged, key=lambda each: (each.ratio or 1.0) - 1 - each.margin)
    return f"as {cell.against}, in every gate and metric; {closest.metric}: {closest.reason}"


def sentence(verdict: Verdict, cells: Sequence[CellVerdict], controls: Sequence[Control]) -> str:
    """Return the verdict over all cells."""
    ran = [cell for cell in cells if cell.verdict is not Verdict.NOT_RUN]
    closed = [cell for cell in cells if cell.verdict is Verdict.NOT_RUN]
    bad = [cell for cell in ran if cell.verdict is Verdict.FAIL and cell.role not in _OWN]
    passed = sum(cell.verdict is Verdict.PASS for cell in ran)
    if verdict is Verdict.PASS:
        return f"Nothing that was looked at got worse: all {len(ran)} cells pass."
    if verdict is Verdict.FAIL:
        first = next(cell for cell in bad)
        more = f" ({len(bad)} cells fail in all.)" if len(bad) > 1 else ""
        return f"Do not upgrade: {first.cell} fails, {first.reason}.{more}"
    if not ran:
        return "No answer: nothing was run."
    broken = [each for each in controls if each.verdict not in (Verdict.PASS, Verdict.NOT_RUN)]
    if broken:
        return (
            f"No answer: the control {broken[0].cell} says not to believe it, {broken[0].reason}."
        )
    unknown = [cell for cell in ran if cell.verdict is not Verdict.PASS]
    if unknown:
        return f"No answer: {unknown[0].cell}: {unknown[0].reason}."
    return (
        f"All {passed} cells that can run here pass; {len(closed)} were not run, and what they "
        "were to prove stays open."
    )


# Cells that say nothing against the new stack when they fail.
_OWN = frozenset({Role.REFERENCE, Role.SAME, Role.SLOWER, Role.FASTER, Role.SEPARATOR})


def open_questions(cells: Sequence[Cell], verdicts: Sequence[CellVerdict]) -> tuple[str, ...]:
    """Return what was to be proven and is not."""
    proves = {cell.id: cell.proves for cell in cells}
    return tuple(
        f"{each.cell}: {proves[each.cell] or 'no purpose stated'} ({each.reason})"
        for each in verdicts
        if each.verdict in (Verdict.NOT_RUN, Verdict.INCONCLUSIVE)
    )


def summary(judgement: Judgement) -> str:
    """Return the verdict and its sentence in one line."""
    return f"{judgement.verdict}: {judgement.sentence}"
