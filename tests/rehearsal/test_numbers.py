"""Whether the new stack computed the same numbers: in the records, or said to be not known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from keepstep.canary.matrix import cells
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.rehearsal.numbers import numbers
from keepstep.report.model import Numbers
from tests.canary.records import changed, each_rank, rehearsal, small_plan

PLAN = small_plan(pairs=3)
CELLS = cells(PLAN)
NEW, OLD = "data_parallel/2.15/gloo", "data_parallel/2.14/gloo"


def compared(runs: list[RunRecord]) -> Numbers:
    (found,) = numbers(CELLS, runs)
    return found


def with_step(
    number: int, only: int | None = None, **changes: object
) -> Callable[[RunRecord], RunRecord]:
    """A change to one step of every rank, or of one."""

    def change(rank: RankRecord) -> RankRecord:
        steps = list(rank.steps)
        steps[number] = steps[number].model_copy(update=changes)
        return rank.model_copy(update={"steps": tuple(steps)})

    return lambda run: each_rank(run, change, only)


def test_equal_numbers_are_counted() -> None:
    found = compared(rehearsal(PLAN))
    assert (found.cell, found.against) == (NEW, OLD)
    assert (found.runs, found.reference_runs, found.steps) == (3, 3, 10)
    assert (found.missing, found.difference, found.where) == ("", None, "")


def test_the_last_bit_of_one_run_is_a_difference() -> None:
    bit = math.nextafter(4 - 3 / 7, 9)
    found = compared(changed(rehearsal(PLAN), NEW, with_step(3, only=1, loss=bit), pair=2))
    assert found.where == "loss of step 3 on rank 1"
    assert found.difference is not None
    assert 0 < found.difference < 3e-16


def test_a_zero_with_another_sign_is_another_number() -> None:
    runs = changed(rehearsal(PLAN), OLD, with_step(3, loss=0.0))
    found = compared(changed(runs, NEW, with_step(3, loss=-0.0)))
    assert (found.difference, found.where) == (0.0, "loss of step 3 on rank 0")


def test_the_largest_difference_is_named() -> None:
    runs = changed(rehearsal(PLAN), NEW, with_step(2, loss=3.70))
    found = compared(changed(runs, NEW, with_step(5, gradient_norm=1.7e308)))
    assert found.where == "gradient norm of step 5 on rank 0"
    assert found.difference == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_step(4, gradient_norm=None), "no gradient norm of step 4 on rank 0 in some runs"),
        (with_step(4, only=1, loss=None), "no loss of step 4 on rank 1 in some runs"),
        (
            lambda run: run.model_copy(update={"ranks": run.ranks[:1]}),
            "no gradient norm of step 0 on rank 1 in some runs",
        ),
        (
            lambda run: each_rank(run, lambda one: one.model_copy(update={"steps": ()})),
            "no gradient norm of step 0 on rank 0 in some runs",
        ),
    ],
)
def test_what_was_not_recorded_is_not_equal(
    change: Callable[[RunRecord], RunRecord], said: str
) -> None:
    assert compared(changed(rehearsal(PLAN), NEW, change, pair=1)).missing == said


def test_a_loss_that_only_the_last_rank_sees_is_compared_there() -> None:
    runs = rehearsal(PLAN)
    for number in range(10):
        for cell in (OLD, NEW):
            runs = changed(runs, cell, with_step(number, only=0, loss=None))
    assert compared(runs).missing == ""
    assert compared(changed(runs, NEW, with_step(2, only=1, loss=9.0))).difference is not None


def test_a_loss_that_no_rank_sees_is_missing() -> None:
    runs = rehearsal(PLAN)
    for cell in (OLD, NEW):
        runs = changed(runs, cell, with_step(2, loss=None))
    assert compared(runs).missing == "no loss of step 2 on any rank"


@pytest.mark.parametrize("cell", [OLD, NEW])
def test_without_a_complete_run_nothing_is_known(cell: str) -> None:
    def crash(run: RunRecord) -> RunRecord:
        return run.model_copy(update={"outcome": Outcome.CRASH})

    assert compared(changed(rehearsal(PLAN), cell, crash)).missing == f"no complete run of {cell}"


def test_what_was_not_run_is_not_compared() -> None:
    def skip(run: RunRecord) -> RunRecord:
        return run.model_copy(update={"outcome": Outcome.NOT_RUN})

    assert numbers(CELLS, changed(rehearsal(PLAN), NEW, skip)) == ()


def test_no_runs_at_all() -> None:
    assert numbers(CELLS, []) == ()
