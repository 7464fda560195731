"""The judge as a whole: pure, sceptical, and no easier to please when evidence goes missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.canary.cell import Role
from keepstep.canary.hangs import hang_bound
from keepstep.canary.judge import StrayRunError, judge
from keepstep.canary.matrix import Machine, cells, runnable
from keepstep.canary.plan import Margins, default_plan
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.canary.verdict import CellVerdict, Judgement, Verdict
from tests.canary.records import (
    changed,
    each_rank,
    rehearsal,
    run,
    small_plan,
    timed,
    warned,
    with_rank,
)

PLAN = small_plan(pairs=3)
CELLS = cells(PLAN)
RUNS = tuple(rehearsal(PLAN))
REFERENCE, SAME, CANDIDATE, SLOWER, FASTER = (cell.id for cell in CELLS)
FEW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def judged(runs: Sequence[RunRecord]) -> Judgement:
    return judge(PLAN, CELLS, runs)


def of(judgement: Judgement, cell: str) -> CellVerdict:
    return next(each for each in judgement.cells if each.cell == cell)


def slowed(factor: float, cell: str = CANDIDATE) -> list[RunRecord]:
    return rehearsal(PLAN, slower={cell: factor})


def crashed(record: RunRecord) -> RunRecord:
    return record.model_copy(update={"outcome": Outcome.CRASH, "reason": "exit code 1"})


def hung(record: RunRecord) -> RunRecord:
    return record.model_copy(update={"outcome": Outcome.HANG, "reason": "not ended after 120 s"})


def wrong(record: RunRecord) -> RunRecord:
    return with_rank(record, 1, data_sha256="f" * 64)


def noisy(record: RunRecord) -> RunRecord:
    return with_rank(record, 0, warnings=(warned("new"),))


def much_slower(record: RunRecord) -> RunRecord:
    return timed(record, 0.06)


FAULTS: tuple[Callable[[RunRecord], RunRecord], ...] = (crashed, hung, wrong, noisy, much_slower)


def test_a_good_rehearsal_passes() -> None:
    found = judged(RUNS)
    assert found.verdict is Verdict.PASS
    assert found.sentence == "Nothing that was looked at got worse: all 5 cells pass."
    assert [control.name for control in found.controls] == ["same", "slower", "faster"]
    assert {control.verdict for control in found.controls} == {Verdict.PASS}
    assert found.open == ()


def test_a_slowdown_of_ten_percent_fails() -> None:
    found = judged(slowed(1.10))
    assert found.verdict is Verdict.FAIL
    assert re.fullmatch(
        r"Do not upgrade: data_parallel/2\.15/gloo fails, step: \d+\.\d % slower steps, at least "
        r"\d+\.\d % \(99 % sure\); up to 5 % is allowed\.",
        found.sentence,
    )


@FEW
@given(st.permutations(range(len(RUNS))), st.sampled_from(FAULTS))
def test_the_order_of_the_runs_changes_nothing(
    order: list[int], fault: Callable[[RunRecord], RunRecord]
) -> None:
    runs = changed(RUNS, CANDIDATE, fault, pair=1)
    shuffled = [runs[number] for number in order]
    backwards = [
        each.model_copy(update={"ranks": tuple(reversed(each.ranks))}) for each in shuffled
    ]
    assert judged(shuffled) == judged(runs)
    assert judged(backwards).verdict == judged(runs).verdict


@FEW
@given(
    st.sampled_from(FAULTS),
    st.sampled_from([cell.id for cell in CELLS]),
    st.integers(0, 2),
    st.integers(0, len(RUNS) - 1),
    st.booleans(),
)
def test_leaving_a_record_out_never_makes_a_pass(
    fault: Callable[[RunRecord], RunRecord], cell: str, pair: int, left_out: int, whole: bool
) -> None:
    before = changed(RUNS, cell, fault, pair)
    if whole:
        after = before[:left_out] + before[left_out + 1 :]
    else:
        short = before[left_out].model_copy(update={"ranks": before[left_out].ranks[:1]})
        after = [*before[:left_out], short, *before[left_out + 1 :]]
    then, now = judged(before), judged(after)
    assert now.verdict is not Verdict.PASS
    for one, other in zip(then.cells, now.cells, strict=True):
        assert one.verdict is Verdict.PASS or other.verdict is not Verdict.PASS


@pytest.mark.parametrize("cell", [REFERENCE, SAME, CANDIDATE])
def test_a_missing_run_blocks_and_is_named(cell: str) -> None:
    runs = [each for each in RUNS if (each.cell, each.pair) != (cell, 1)]
    found = judged(runs)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert of(found, CANDIDATE).verdict is Verdict.INCONCLUSIVE
    assert any("pair 1" in gate.seen for gate in of(found, cell).gates)


# What the probe always records; an empty value stands for one that it did not.
ALWAYS: dict[str, Any] = {
    "fingerprint": {},
    "script_sha256": "",
    "seed": None,
    "model_sha256": None,
    "model_parameters": None,
    "data_sha256": None,
    "memory_before_first_step": None,
    "memory_peak": None,
    "shutdown_s": None,
    "groups": (),
    "steps": (),
    "tokens": None,
    "end": "running",
}


@pytest.mark.parametrize("field", ALWAYS)
@pytest.mark.parametrize("cell", [REFERENCE, CANDIDATE])
def test_a_missing_datum_is_no_pass(field: str, cell: str) -> None:
    runs = changed(RUNS, cell, lambda each: with_rank(each, 1, **{field: ALWAYS[field]}), pair=2)
    if field == "tokens":  # one rank may have none, as the second one in a pipeline
        runs = changed(RUNS, cell, lambda each: with_rank(each, tokens=None), pair=2)
    found = judged(runs)
    assert found.verdict is not Verdict.PASS
    assert of(found, CANDIDATE).verdict is not Verdict.PASS


@pytest.mark.parametrize("field", ALWAYS)
def test_a_datum_that_is_missing_everywhere_is_no_pass(field: str) -> None:
    runs = [with_rank(each, **{field: ALWAYS[field]}) for each in RUNS]
    found = judged(runs)
    assert found.verdict is not Verdict.PASS
    assert of(found, CANDIDATE).verdict is not Verdict.PASS


@pytest.mark.parametrize("number", [0, 5, 9])
def test_a_missing_loss_or_step_is_no_pass(number: int) -> None:
    def without(one: RankRecord) -> RankRecord:
        steps = list(one.steps)
        steps[number] = steps[number].model_copy(update={"loss": None})
        return one.model_copy(update={"steps": tuple(steps)})

    runs = changed(RUNS, CANDIDATE, lambda each: each_rank(each, without, only=0), pair=0)
    assert of(judged(runs), CANDIDATE).verdict is Verdict.FAIL


def test_nothing_at_all_is_no_pass() -> None:
    found = judged([])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence == "No answer: nothing was run."
    assert {cell.verdict for cell in found.cells} == {Verdict.NOT_RUN}


def test_a_run_of_another_plan_is_refused() -> None:
    stray = RUNS[0].model_copy(update={"cell": "other"})
    with pytest.raises(StrayRunError, match="no such cell"):
        judged([*RUNS, stray])
    with pytest.raises(StrayRunError, match="only 3 pairs"):
        judged([*RUNS, RUNS[0].model_copy(update={"pair": 3})])


def test_a_run_that_was_repeated_is_refused() -> None:
    with pytest.raises(StrayRunError, match=r"two runs of .*, pair 0"):
        judged([*RUNS, RUNS[0]])


def test_equal_arms_that_differ_make_everything_inconclusive() -> None:
    for factor in (1.2, 0.8):
        found = judged(slowed(factor, SAME))
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.controls[0].verdict is Verdict.FAIL
        assert "two equal arms differ" in found.sentence


def test_a_planted_slowdown_that_is_not_found_makes_everything_inconclusive() -> None:
    found = judged(slowed(1 / 1.10, SLOWER))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the planted slowdown is not found" in found.sentence


def test_a_planted_gain_that_is_called_a_loss_makes_everything_inconclusive() -> None:
    found = judged(slowed(1.3, FASTER))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "a planted gain is called a loss" in found.sentence


def test_without_controls_a_measured_loss_is_not_believed_and_a_crash_is() -> None:
    slow = rehearsal(PLAN, slower={CANDIDATE: 1.1, SAME: 1.2})
    assert judged(slow).verdict is Verdict.INCONCLUSIVE
    assert judged(changed(slow, CANDIDATE, crashed, pair=0)).verdict is Verdict.FAIL


def test_a_reference_that_fails_says_nothing_against_the_new_stack() -> None:
    found = judged(changed(RUNS, REFERENCE, crashed, pair=0))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert of(found, REFERENCE).verdict is Verdict.FAIL
    assert of(found, CANDIDATE).verdict is Verdict.INCONCLUSIVE


def test_where_both_stacks_crash_nothing_is_said_against_the_new_one() -> None:
    both = changed(changed(RUNS, REFERENCE, crashed, pair=0), CANDIDATE, crashed, pair=0)
    found = judged(both)
    assert of(found, CANDIDATE).verdict is Verdict.FAIL
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_plan_may_judge_no_metric_of_a_cell() -> None:
    found = judge(
        PLAN.model_copy(update={"margins": Margins(cpu={"step": 0.05})}), CELLS, slowed(1.02)
    )
    shown = {each.metric: each.judged for each in of(found, CANDIDATE).soft}
    assert shown == {
        "init": False,
        "first_collective": False,
        "step": True,
        "throughput": False,
        "collective_small": False,
        "collective_large": False,
        "point_to_point": False,
        "memory_peak": False,
    }
    assert found.verdict is Verdict.PASS


def test_cells_that_this_machine_cannot_run_stay_open() -> None:
    plan = default_plan().model_copy(update={"pairs": 3})
    all_cells = cells(plan)
    runs = []
    for record in rehearsal(plan):
        cell = next(each for each in all_cells if each.id == record.cell)
        if not (why := runnable(cell, Machine())):
            runs.append(record)
        elif record.pair == 0:
            runs.append(run(cell, plan=plan, outcome=Outcome.NOT_RUN, reason=why, ranks=()))
    found = judge(plan, all_cells, runs)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence == (
        "All 14 cells that can run here pass; 34 were not run, and what they were to prove stays "
        "open."
    )
    assert len(found.open) == 34
    assert (
        "pipeline/2.15/nccl-lazy: communicators made at first use do not slow the pipeline down "
        "(it needs 2 GPUs, and here is none)"
    ) in found.open


def test_roles_are_kept() -> None:
    assert [cell.role for cell in judged(RUNS).cells] == [
        Role.REFERENCE,
        Role.SAME,
        Role.CANDIDATE,
        Role.SLOWER,
        Role.FASTER,
    ]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (10, "0 of 10 runs hung: under 26 % of runs hang (95 % confidence)"),
        (20, "0 of 20 runs hung: under 14 % of runs hang (95 % confidence)"),
        (59, "0 of 59 runs hung: under 5 % of runs hang (95 % confidence)"),
        (300, "0 of 300 runs hung: under 1 % of runs hang (95 % confidence)"),
    ],
)
def test_runs_without_a_hang_bound_its_rate(count: int, words: str) -> None:
    assert hang_bound([RUNS[0]] * count) == words


def test_a_hang_is_counted_and_what_was_not_run_is_not() -> None:
    closed = RUNS[0].model_copy(update={"outcome": Outcome.NOT_RUN})
    assert hang_bound([hung(RUNS[0]), RUNS[1], closed]) == "1 of 2 runs hung"
    assert hang_bound([closed]) == ""
