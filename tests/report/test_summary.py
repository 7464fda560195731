"""One verdict, one sentence, what to do next: nothing that is missing is ever passed over."""

from __future__ import annotations

from typing import Any

import pytest

from keepstep.canary.cell import Role
from keepstep.canary.verdict import Control, SoftResult, Verdict
from keepstep.report.model import OVER, CellResult, NotRun, Rehearsal
from keepstep.report.steps import steps
from keepstep.report.summary import gaps, sentence, verdict_of
from tests.report.rehearsals import (
    CHECKPOINT,
    CONTROLS,
    NO_GPU,
    drills,
    failing,
    inconclusive,
    judged,
    matrix,
    on_gpus,
    passing,
    rehearsal,
    soft,
)


def with_verdict(whole: Any, verdict: Verdict) -> Any:
    return whole.model_copy(update={"verdict": verdict})


def test_everything_that_was_asked_passed() -> None:
    assert verdict_of(passing()) is Verdict.PASS
    assert sentence(passing()) == (
        "Ready to move from PyTorch 2.14.1 to 2.15.0: 14 cells and 4 drills passed, "
        "nothing was left out."
    )
    (step,) = steps(passing())
    assert step.text.startswith("Sign below")


def test_a_machine_without_a_gpu_decides_nothing() -> None:
    assert verdict_of(inconclusive()) is Verdict.INCONCLUSIVE
    assert sentence(inconclusive()) == (
        "Not decided whether to move from PyTorch 2.14.1 to 2.15.0: nothing failed in 14 cells and "
        "4 drills, but 12 more could not be run on this machine."
    )
    assert any(
        "another machine" in step.text and NO_GPU in step.text for step in steps(passing())
    ) is (False)
    assert any(NO_GPU in step.text for step in steps(inconclusive()))


def test_what_only_lacked_time_asks_for_the_same_command_and_no_other_machine() -> None:
    late = NotRun(what="mine/2.15/gloo", proves="it trains the same", why=OVER)
    whole = with_gaps(passing(), (late,))
    assert "1 more was not begun in this sitting" in sentence(whole)
    assert "on this machine" not in sentence(whole)
    said = [step.text for step in steps(whole)]
    assert any(text.startswith("start the same command again") for text in said)
    assert not any("another machine" in text for text in said)


def test_a_plan_without_the_ways_back_is_never_ready() -> None:
    some = tuple(drill for drill in drills() if drill.name.startswith(("hang", "replace")))
    whole = passing().model_copy(update={"drills": some})
    assert verdict_of(whole) is Verdict.INCONCLUSIVE
    assert "the plan leaves out the ways back (rollback and restore)" in sentence(whole)
    assert any(step.text.startswith("Put rollback and restore into") for step in steps(whole))


def with_gaps(whole: Rehearsal, not_run: tuple[NotRun, ...]) -> Rehearsal:
    return whole.model_copy(update={"not_run": not_run})


def test_what_failed_is_named_in_the_sentence() -> None:
    found = failing()
    assert verdict_of(found) is Verdict.FAIL
    assert sentence(found).startswith("Do not move from PyTorch 2.14.1 to 2.15.0: ")
    for name in ("tensor/2.15/gloo", "pipeline/2.15/gloo", "hang/2.15/gloo"):
        assert name in sentence(found)


def test_each_step_is_there_once_with_all_that_asks_for_it_failures_first() -> None:
    found = steps(failing())
    assert [step.about for step in found] == [
        "tensor/2.15/gloo",
        "pipeline/2.15/gloo",
        "hang/2.15/gloo",
        "step time of sharded/2.15/gloo",
    ]
    assert "pairs = 14" in found[3].text


def test_what_a_control_was_planted_with_is_nothing_to_mend() -> None:
    """The slowed-down control has a metric that fails; that it was found is its pass."""
    slower = next(each for each in passing().cells if each.cell.id.endswith("/slower"))
    assert slower.verdict is not None
    assert any(each.verdict is Verdict.FAIL for each in slower.verdict.soft)
    assert not any("slower" in step.about for step in steps(passing()))


def test_one_number_of_pairs_does_for_all_that_is_too_noisy() -> None:
    def noisy(pairs: int | None, metric: str = "step") -> SoftResult:
        changes = {"metric": metric, "verdict": Verdict.INCONCLUSIVE, "pairs_wanted": pairs}
        return soft()[0].model_copy(update=changes)

    one, two, three = matrix()[2], matrix()[5], matrix()[8]
    cells = (
        judged(one, verdict=Verdict.INCONCLUSIVE, soft=(noisy(14), noisy(9, "init"))),
        judged(two, verdict=Verdict.INCONCLUSIVE, soft=(noisy(27), noisy(None, "throughput"))),
        judged(three, verdict=Verdict.INCONCLUSIVE, soft=(noisy(None),)),
    )
    pairs, quieter = steps(rehearsal(cells=cells))
    assert pairs.text.startswith("Set pairs = 27 in the plan")
    assert pairs.about == f"step and init of {one.id} and step of {two.id}"
    assert quieter.text.startswith("Make the machine quieter")
    assert quieter.about == f"throughput of {two.id} and step of {three.id}"
    assert "3 cells have no answer" in sentence(rehearsal(cells=cells))


def test_what_passed_may_leave_something_to_do_after_the_rest() -> None:
    debt = drills()[1].model_copy(update={"next": "name who may pull the lever"})
    found = steps(rehearsal(drills=(drills()[0], debt, *drills()[2:])))
    assert found[0].text == "name who may pull the lever"
    assert found[-1].text.startswith("Sign below")


_MISSING = NotRun(what="replace", proves="a rank is replaced", why="no second port")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"drills": ()}, Verdict.INCONCLUSIVE),
        ({"checkpoint": None}, Verdict.INCONCLUSIVE),
        ({"not_run": (_MISSING,)}, Verdict.INCONCLUSIVE),
        ({"checkpoint": with_verdict(CHECKPOINT, Verdict.FAIL)}, Verdict.FAIL),
        ({"drills": (with_verdict(drills()[0], Verdict.INCONCLUSIVE),)}, Verdict.INCONCLUSIVE),
        ({"drills": (with_verdict(drills()[0], Verdict.FAIL),)}, Verdict.FAIL),
        (
            {"judgement": with_verdict(passing().judgement, Verdict.INCONCLUSIVE)},
            Verdict.INCONCLUSIVE,
        ),
        ({"judgement": with_verdict(passing().judgement, Verdict.FAIL)}, Verdict.FAIL),
        (
            {"cells": (*passing().cells, CellResult(cell=on_gpus()[0], state="interrupted"))},
            Verdict.INCONCLUSIVE,
        ),
    ],
)
def test_one_thing_that_is_missing_or_wrong_keeps_the_whole_from_passing(
    changes: dict[str, Any], wanted: Verdict
) -> None:
    found = rehearsal(**changes)
    assert verdict_of(found) is wanted
    begin = {Verdict.FAIL: "Do not move", Verdict.INCONCLUSIVE: "Not decided"}[wanted]
    assert sentence(found).startswith(begin)


def test_a_control_that_failed_means_that_the_judge_is_not_believed() -> None:
    blind: Control = with_verdict(CONTROLS[1], Verdict.FAIL)
    judgement = passing().judgement.model_copy(update={"controls": (CONTROLS[0], blind)})
    found = rehearsal(judgement=judgement)
    assert verdict_of(found) is Verdict.INCONCLUSIVE
    assert sentence(found) == (
        "Not decided whether to move from PyTorch 2.14.1 to 2.15.0: control slower "
        "(data_parallel/2.14/gloo/slower) did not pass, so the judge is not to be believed."
    )


def test_a_cell_of_the_old_stack_that_fails_says_nothing_against_the_new_one() -> None:
    old = judged(matrix()[0], verdict=Verdict.FAIL)
    judgement = with_verdict(passing().judgement, Verdict.INCONCLUSIVE)
    found = rehearsal(cells=(old, *passing().cells[1:]), judgement=judgement)
    assert verdict_of(found) is Verdict.INCONCLUSIVE
    assert "cell data_parallel/2.14/gloo failed, which decides nothing by itself" in sentence(found)
    new = judged(matrix()[2], verdict=Verdict.FAIL)
    both = rehearsal(cells=(old, new), judgement=with_verdict(judgement, Verdict.FAIL))
    assert ": cell data_parallel/2.15/gloo failed. Today's stack failed as well" in sentence(both)
    only_new = rehearsal(cells=(new,), judgement=with_verdict(judgement, Verdict.FAIL))
    assert sentence(only_new).endswith(": cell data_parallel/2.15/gloo failed.")


def test_a_cell_that_fails_by_its_time_says_what_to_do() -> None:
    cell = judged(matrix()[2], verdict=Verdict.FAIL, soft=soft(1.2))
    found = rehearsal(cells=(cell,))
    assert any("keepstep receipt diff" in step.text for step in steps(found))


def test_many_failures_are_counted_not_listed() -> None:
    on_new = [each.model_copy(update={"role": Role.CANDIDATE}) for each in matrix()]
    cells = tuple(judged(each, verdict=Verdict.FAIL) for each in on_new)
    judgement = with_verdict(passing().judgement, Verdict.FAIL)
    assert "and 11 more failed" in sentence(rehearsal(cells=cells, judgement=judgement))


def test_gaps_are_grouped_by_what_they_were_to_prove() -> None:
    found = gaps(inconclusive())
    assert [len(gap.what) for gap in found] == [4, 4, 4]
    assert {gap.why for gap in found} == {NO_GPU}


def test_builds_of_one_version_are_told_apart() -> None:
    old, new = passing().stacks
    stacks = (old, new.model_copy(update={"torch": "2.14.1+cu132"}))
    assert "from PyTorch 2.14.1+cu130 to 2.14.1+cu132" in sentence(rehearsal(stacks=stacks))


def test_a_record_goes_through_json() -> None:
    for found in (passing(), failing(), inconclusive()):
        assert Rehearsal.model_validate_json(found.model_dump_json()) == found
