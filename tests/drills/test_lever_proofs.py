"""A lever counts when every rank says so, and one on some ranks only must have been noticed."""

from __future__ import annotations

from typing import Any

import pytest

from keepstep.canary.verdict import Verdict
from keepstep.drills.lever_proofs import OLD_BUILDER, prove_class, prove_partly, prove_resolution
from keepstep.drills.levers import LEVERS, SPELLING_LEVER, STACK_LEVER, VARIABLE_LEVER, debt
from keepstep.drills.notebook import Notebook
from keepstep.drills.resolutions import Resolutions

NEW_BUILDER = "_create_nccl2_process_group"


def book() -> Notebook:
    return Notebook(drill="rollback", name="rollback/variable", stack="x", backend="nccl")


def answer(builder: str = OLD_BUILDER, **more: Any) -> dict[str, Any]:
    return {"builder": builder, "type": "NCCL", "read_once": True, **more}


def answers(*found: dict[str, Any], codes: tuple[int, ...] = (0, 0)) -> Resolutions:
    return Resolutions(answers=found, codes=codes, tail="")


def test_every_rank_resolves_to_the_old_backend() -> None:
    page = book()
    prove_resolution(page, VARIABLE_LEVER, answers(answer(), answer()))
    assert page.record().verdict is Verdict.PASS


@pytest.mark.parametrize(
    "found",
    [
        answers(answer(), answer(NEW_BUILDER)),
        answers(answer(), answer(type="CUSTOM")),
        answers(answer(), answer(read_once=False)),
    ],
)
def test_a_rank_that_resolves_to_something_else_fails(found: Resolutions) -> None:
    page = book()
    prove_resolution(page, VARIABLE_LEVER, found)
    assert page.record().verdict is Verdict.FAIL


def test_a_rank_that_did_not_answer_proves_nothing() -> None:
    page = book()
    prove_resolution(page, VARIABLE_LEVER, answers(answer()))
    assert page.record().verdict is Verdict.INCONCLUSIVE


def test_an_old_stack_that_registers_no_function_means_the_old_backend() -> None:
    page = book()
    unregistered = {**answer(), "builder": None}
    prove_resolution(page, STACK_LEVER, answers(unregistered, unregistered))
    assert page.record().verdict is Verdict.PASS
    page = book()
    prove_resolution(page, VARIABLE_LEVER, answers(unregistered, unregistered))
    assert page.record().verdict is Verdict.FAIL


def test_the_spelling_is_of_another_type() -> None:
    page = book()
    prove_resolution(page, SPELLING_LEVER, answers(answer(), answer()))
    assert page.record().verdict is Verdict.FAIL


def partly(*, second: str | None = None, caught: bool = True, early: bool = True) -> Resolutions:
    more: dict[str, Any] = {
        "differs": ["builder differs: rank 0: old, rank 1: new"] if caught else [],
        "collectives_before": 0 if early else 1,
    }
    return answers(
        answer(variable="0", **more),
        answer(NEW_BUILDER, variable=second, **more),
        codes=(1, 1) if caught else (0, 0),
    )


def judged(found: Resolutions) -> Verdict:
    page = book()
    prove_partly(page, VARIABLE_LEVER, found, "variable", "0")
    return page.record().verdict


def test_a_lever_on_one_rank_only_is_caught() -> None:
    assert judged(partly()) is Verdict.PASS


def test_a_lever_on_one_rank_only_that_nobody_notices_fails() -> None:
    assert judged(partly(caught=False)) is Verdict.FAIL


def test_noticed_after_the_first_collective_is_too_late() -> None:
    assert judged(partly(early=False)) is Verdict.FAIL


def test_a_lever_that_was_on_every_rank_proves_nothing_about_one() -> None:
    assert judged(partly(second="0")) is Verdict.INCONCLUSIVE


def test_nobody_answered() -> None:
    assert judged(answers(codes=(2, 2))) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("built", "wanted"),
    [
        (("ProcessGroupNCCL", "ProcessGroupNCCL"), Verdict.PASS),
        (("ProcessGroupNCCL", "ProcessGroupNCCL2"), Verdict.FAIL),
        ((None, None), Verdict.FAIL),
        (("ProcessGroupNCCL",), Verdict.INCONCLUSIVE),
    ],
)
def test_what_was_really_built(built: tuple[str | None, ...], wanted: Verdict) -> None:
    page = book()
    prove_class(page, VARIABLE_LEVER, answers(*(answer(built=each) for each in built)))
    assert page.record().verdict is wanted


@pytest.mark.parametrize("lever", LEVERS.values(), ids=LEVERS)
def test_a_debt_says_who_where_how_and_until_when(lever: Any) -> None:
    row = debt(lever, owner="ada", until="2027-01-31")
    assert row["dated"]
    for name in ("who", "lives_in", "verified_by", "ends", "cannot_undo", "source"):
        assert row[name]


def test_a_debt_without_an_owner_or_a_day_is_not_dated() -> None:
    assert not debt(STACK_LEVER, owner="", until="2027-01-31")["dated"]
    assert not debt(STACK_LEVER, owner="ada", until="")["dated"]
