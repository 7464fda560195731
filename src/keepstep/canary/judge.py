"""From records to a verdict: pure, so that it can be repeated years later from stored receipts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keepstep.canary.cell import Cell, Role
from keepstep.canary.controls import control_of
from keepstep.canary.gate.case import Case
from keepstep.canary.gates import pass_gates
from keepstep.canary.hangs import hang_bound
from keepstep.canary.matrix import CONTROLS, wanted_class
from keepstep.canary.measured import applies, value
from keepstep.canary.metrics import METRICS
from keepstep.canary.plan import Plan
from keepstep.canary.record import Outcome, RunRecord
from keepstep.canary.sentences import cell_reason, open_questions, sentence
from keepstep.canary.soft import Measured, judge_metrics
from keepstep.canary.verdict import (
    CellVerdict,
    Control,
    GateResult,
    Judgement,
    SoftResult,
    Verdict,
    worst,
)

# Gates that say whether the two arms may be compared at all.
_COMPARABLE = frozenset({"crash", "hang", "records", "identity"})


class StrayRunError(ValueError):
    """A run that the plan does not have, or has once only: leaving it out would be a choice."""


def judge(plan: Plan, cells: Sequence[Cell], runs: Sequence[RunRecord]) -> Judgement:
    """Return the verdict over all cells.

    Args:
        plan: By which rules.
        cells: What was to be run.
        runs: What was run, in any order.

    Raises:
        StrayRunError: A run belongs to no cell or pair of the plan, or there are two of one.
    """
    found = _by_cell(plan, cells, runs)
    by_id = {cell.id: cell for cell in cells}
    verdicts = {cell.id: _judge_cell(plan, cell, by_id, found) for cell in cells}
    controls = tuple(
        control_of(verdicts[cell.id], _reversed(plan, cell, by_id, found))
        for cell in cells
        if cell.role in CONTROLS
    )
    told = {control.cell: control for control in controls}
    judged = tuple(_as_control(each, told.get(each.cell)) for each in verdicts.values())
    verdict = _overall(judged, controls, {cell.id: cell.against for cell in cells})
    return Judgement(
        verdict=verdict,
        sentence=sentence(verdict, judged, controls),
        cells=judged,
        controls=controls,
        open=open_questions(cells, judged),
    )


def _judge_cell(
    plan: Plan, cell: Cell, cells: Mapping[str, Cell], found: Mapping[str, tuple[RunRecord, ...]]
) -> CellVerdict:
    runs = found[cell.id]
    ran = [run for run in runs if run.outcome is not Outcome.NOT_RUN]
    if not ran:
        return CellVerdict(
            cell=cell.id,
            role=cell.role,
            verdict=Verdict.NOT_RUN,
            runs=0,
            reason=next((run.reason for run in runs if run.reason), "") or "no run is recorded",
        )
    reference = cells.get(cell.against)
    case = Case(
        plan=plan,
        cell=cell,
        runs=runs,
        reference=reference,
        reference_runs=found[reference.id] if reference else (),
        wanted_class=wanted_class(plan, cell),
    )
    gates = pass_gates(case)
    soft: list[SoftResult] = []
    if reference and _are_comparable(gates) and case.is_comparable:
        soft = judge_metrics(_measured(plan, cell, cells, found))
    verdict = _verdict(gates, soft)
    reason = cell_reason(cell, verdict, gates, soft)
    if reference and verdict is Verdict.PASS:
        behind = _judge_cell(plan, reference, cells, found)
        if behind.verdict is not Verdict.PASS:
            verdict = Verdict.INCONCLUSIVE
            reason = f"its reference {reference.id} does not pass: {behind.reason}"
    return CellVerdict(
        cell=cell.id,
        role=cell.role,
        verdict=verdict,
        runs=len(ran),
        gates=gates,
        soft=tuple(soft),
        reason=reason,
        hang_bound=hang_bound(ran),
    )


def _measured(
    plan: Plan, cell: Cell, cells: Mapping[str, Cell], found: Mapping[str, tuple[RunRecord, ...]]
) -> list[Measured]:
    """Return the metrics of a cell, of its reference, and of the A/A runs beside them."""
    job = plan.jobs[cell.job]
    same = next(
        (
            each.id
            for each in cells.values()
            if each.role is Role.SAME and each.against == cell.against and each.id != cell.id
        ),
        None,
    )

    def arm(cell_id: str, metric: str) -> list[float | None]:
        by_pair = {run.pair: run for run in found[cell_id] if run.outcome is Outcome.COMPLETE}
        rounds = [by_pair.get(pair) for pair in range(plan.pairs)]
        return [None if run is None else value(metric, run, job) for run in rounds]

    measured = []
    for metric in METRICS:
        if applies(metric, job):
            margin = plan.margins.of(cell.gpus, metric)
            measured.append(
                Measured(
                    metric=metric,
                    reference=arm(cell.against, metric),
                    candidate=arm(cell.id, metric),
                    same=None if same is None else arm(same, metric),
                    margin=None if margin == "informative" else float(margin),
                )
            )
    return measured


def _reversed(
    plan: Plan, cell: Cell, cells: Mapping[str, Cell], found: Mapping[str, tuple[RunRecord, ...]]
) -> list[SoftResult]:
    """Return the answers to the opposite question, which the A/A cell must survive as well."""
    if cell.role is not Role.SAME or not found[cell.id] or cell.against not in found:
        return []
    return judge_metrics(_measured(plan, cell, cells, found), reverse=True)


def _by_cell(
    plan: Plan, cells: Sequence[Cell], runs: Iterable[RunRecord]
) -> dict[str, tuple[RunRecord, ...]]:
    found: dict[str, dict[int, RunRecord]] = {cell.id: {} for cell in cells}
    for run in runs:
        if run.cell not in found or not 0 <= run.pair < plan.pairs:
            raise StrayRunError(
                f"a run of {run.cell}, pair {run.pair}: the plan has no such cell, or only "
                f"{plan.pairs} pairs; wanted the plan that the runs were made for"
            )
        if run.pair in found[run.cell]:
            raise StrayRunError(
                f"two runs of {run.cell}, pair {run.pair}: wanted one; a run that may be repeated "
                "until it passes proves nothing"
            )
        found[run.cell][run.pair] = run
    return {
        cell: tuple(by_pair[pair] for pair in sorted(by_pair)) for cell, by_pair in found.items()
    }


def _are_comparable(gates: Iterable[GateResult]) -> bool:
    return all(gate.verdict is Verdict.PASS or gate.gate not in _COMPARABLE for gate in gates)


def _verdict(gates: Iterable[GateResult], soft: Iterable[SoftResult]) -> Verdict:
    answers = [gate.verdict for gate in gates]
    return worst(answers + [each.verdict for each in soft if each.judged])


def _as_control(verdict: CellVerdict, control: Control | None) -> CellVerdict:
    """Return the verdict of a control cell: whether it did what a control has to do."""
    if control is None:
        return verdict
    return verdict.model_copy(update={"verdict": control.verdict, "reason": control.reason})


def _overall(
    cells: Sequence[CellVerdict], controls: Sequence[Control], against: Mapping[str, str]
) -> Verdict:
    """A hard fail of the new stack stands by itself; what was measured needs the controls.

    Where today's stack fails too, the job or the machine may be to blame: nothing is decided.
    """
    failed = {cell.cell for cell in cells if cell.verdict is Verdict.FAIL}
    believed = all(control.verdict in (Verdict.PASS, Verdict.NOT_RUN) for control in controls)
    new = [cell for cell in cells if cell.role not in CONTROLS | {Role.REFERENCE, Role.SEPARATOR}]
    for cell in new:
        by_gate = any(gate.verdict is Verdict.FAIL for gate in cell.gates)
        is_alone = against[cell.cell] not in failed
        if cell.verdict is Verdict.FAIL and is_alone and (believed or by_gate):
            return Verdict.FAIL
    verdicts = [cell.verdict for cell in cells]
    return Verdict.PASS if worst(verdicts) is Verdict.PASS else Verdict.INCONCLUSIVE
