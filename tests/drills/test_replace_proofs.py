"""The replace drill: a kill that did not happen, another state or another stack never pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from keepstep.canary.verdict import Verdict
from keepstep.drills.notebook import Notebook
from keepstep.drills.record import DrillRecord
from keepstep.drills.replace import prove
from keepstep.drills.supervised import Supervised, why_not
from keepstep.stack.named import Stack

NEW = Stack(name="new", python="/new/bin/python", torch="2.15.0")


def joined(worker: int, rank: int | None, torch: str = "2.15.0+cu132") -> dict[str, Any]:
    return {"event": "worker_joined", "worker": worker, "rank": rank, "torch": torch}


INJECTED = {"event": "fault_injected", "worker": 1, "rank": 1, "pid": 77, "step": 12}
EXITED = {"event": "worker_exited", "worker": 1, "rank": 1, "code": -9, "step": 12, "fenced": None}
RESUMED = {"event": "resumed", "replaced": [[1, 3]]}
KILL = {"fault": "kill", "rank": 1, "action": "replace", "next_step_after_s": 0.3}
SUMMARY = {"state_sha256": "ab" * 32, "samples_lost": 0, "samples_repeated": 0}


def run(*events: dict[str, Any], **summary: Any) -> Supervised:
    ranks = [joined(0, 0), joined(1, 1), joined(2, 2), joined(3, None)]
    return Supervised(
        ended=True,
        exit_code=0,
        summary={**SUMMARY, "recoveries": [], **summary},
        events=(*ranks, *events),
        left_over=(),
        tail="",
    )


UNDISTURBED = run()
KILLED = run(INJECTED, EXITED, RESUMED, recoveries=[KILL])


def judged(undisturbed: Supervised, killed: Supervised) -> DrillRecord:
    book = Notebook(drill="replace", name="replace/new/gloo", stack="new", backend="gloo")
    prove(book, undisturbed, killed, NEW)
    return book.record()


def test_a_rank_that_was_killed_and_replaced() -> None:
    record = judged(UNDISTURBED, KILLED)
    assert record.verdict is Verdict.PASS, record.reason
    assert record.facts["next_step_after_s"] == 0.3
    assert record.fingerprints == {"new": {"torch": "2.15.0+cu132"}}


@pytest.mark.parametrize(
    "killed",
    [
        run(),  # nothing happened, and all else looks well
        run(EXITED, RESUMED, recoveries=[KILL]),  # somebody else's kill
        run(INJECTED, RESUMED, recoveries=[KILL]),  # announced, and it lives
        run(INJECTED, {**EXITED, "code": 1}, RESUMED, recoveries=[KILL]),
        run(INJECTED, {**EXITED, "worker": 2}, RESUMED, recoveries=[KILL]),
        run(INJECTED, {**EXITED, "fenced": True}, RESUMED, recoveries=[KILL]),
    ],
)
def test_a_kill_that_is_not_proven_is_inconclusive(killed: Supervised) -> None:
    record = judged(UNDISTURBED, killed)
    assert record.verdict is Verdict.INCONCLUSIVE
    assert "rank 1 was killed" in record.reason


@pytest.mark.parametrize(
    ("undisturbed", "killed"),
    [
        (UNDISTURBED, run(INJECTED, EXITED, RESUMED, recoveries=[KILL], state_sha256="cd" * 32)),
        (UNDISTURBED, run(INJECTED, EXITED, RESUMED, recoveries=[KILL], samples_repeated=3)),
        (UNDISTURBED, run(INJECTED, EXITED, RESUMED, recoveries=[KILL, KILL])),
        (UNDISTURBED, run(INJECTED, EXITED, {**RESUMED, "replaced": [[1, 0]]}, recoveries=[KILL])),
        (
            UNDISTURBED,
            run(INJECTED, EXITED, RESUMED, recoveries=[{**KILL, "next_step_after_s": 60.0}]),
        ),
        (
            UNDISTURBED,
            run(INJECTED, EXITED, RESUMED, joined(4, None, "2.14.1"), recoveries=[KILL]),
        ),
        (UNDISTURBED, dataclasses.replace(KILLED, left_over=("process 9: python",))),
        (dataclasses.replace(UNDISTURBED, ended=False), KILLED),
    ],
)
def test_what_else_goes_wrong_fails(undisturbed: Supervised, killed: Supervised) -> None:
    assert judged(undisturbed, killed).verdict is Verdict.FAIL


@pytest.mark.parametrize("missing", ["state_sha256", "samples_lost"])
def test_a_summary_that_does_not_say_is_inconclusive(missing: str) -> None:
    killed = run(INJECTED, EXITED, RESUMED, recoveries=[KILL], **{missing: None})
    assert judged(UNDISTURBED, killed).verdict is Verdict.INCONCLUSIVE


def test_a_stack_that_cannot_replace_a_rank_is_told() -> None:
    assert "2.15" in why_not(dataclasses.replace(NEW, torch="2.14.1"))
    assert why_not(NEW) == ""
