"""Losses of two runs, and digests of two loads: equal, apart, or not to be compared."""

from __future__ import annotations

import pytest

from keepstep.drills.job_runs import JobRun, largest_difference
from keepstep.drills.test_loads import TestLoad, differing


def test_equal_losses() -> None:
    assert largest_difference([(1.0, 2.0), (3.0, 4.0)], [(1.0, 2.0), (3.0, 4.0)]) == 0.0


def test_the_largest_difference_is_relative() -> None:
    assert largest_difference([(100.0,), (1.0,)], [(101.0,), (1.0,)]) == pytest.approx(1 / 101)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([], []),
        ([()], [()]),
        ([(1.0,)], [(1.0,), (1.0,)]),
        ([(1.0, 2.0)], [(1.0,)]),
        ([(1.0,), ()], [(1.0,), ()]),
    ],
)
def test_losses_that_do_not_pair_say_nothing(
    one: list[tuple[float, ...]], other: list[tuple[float, ...]]
) -> None:
    assert largest_difference(one, other) is None


def load(**digests: str) -> TestLoad:
    return TestLoad(verdict="pass", error="", digests=digests, torch="2.15.0")


def test_entries_that_differ_or_are_missing_are_named() -> None:
    assert differing(load(a="1", b="2"), load(a="1", b="2")) == []
    assert differing(load(a="1", b="2"), load(a="1", b="3", c="4")) == ["b", "c"]


def job(**changes: object) -> JobRun:
    facts: dict[str, object] = {
        "label": "new",
        "ended": True,
        "codes": (0, 0),
        "records": (),
        "left_over": (),
        "tail": "ValueError: too many values to unpack (expected 5)",
    }
    return JobRun(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (job(ended=False), "not ended within its limit"),
        (job(codes=(0, 1)), "rank 1 ended with 1: ValueError: too many values"),
        (job(), "left no record"),
    ],
)
def test_a_run_that_did_not_do_its_work_says_why(run: JobRun, said: str) -> None:
    assert said in run.problem
