"""The hang drill believes in a hang only when every part of it was seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keepstep.canary.verdict import Verdict
from keepstep.drills.expected import Expectation, expected
from keepstep.drills.held_ranks import Observed
from keepstep.drills.injection import prove_injection
from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook
from keepstep.drills.record import DrillRecord

GLOO, NCCL = expected("gloo", "2.15", {}), expected("nccl", "2.15", {})
HELD = 1


def a_hang() -> Observed:
    """Return what is seen when rank 1 is held and ranks 0 and 2 time out after 5 s."""
    observed = Observed(world_size=3, held=HELD, pids=[10, 11, 12], state="S", looked=25.0)
    for rank in (0, 2):
        observed.said[rank] = [
            {"fact": "warm", "at": 19.0},
            {"fact": "entered", "at": 20.0, "collective": 4},
            {"fact": "failed", "at": 25.0, "seconds": 5.0, "error": "RuntimeError: Timed out"},
        ]
    observed.said[HELD] = [
        {"fact": "warm", "at": 19.0},
        {"fact": "held", "at": 19.9, "pid": 11, "line": 7, "stack": "stack-1.txt"},
        {"fact": "still held", "at": 24.9},
        {"fact": "still held", "at": 25.1},
    ]
    return observed


def judged(observed: Observed, expectation: Expectation = GLOO) -> DrillRecord:
    book = Notebook(drill="hang", name="hang/x/gloo", stack="x", backend="gloo")
    prove_injection(book, observed, Limits(), expectation)
    return book.record()


def test_a_hang_that_was_seen_is_proven() -> None:
    record = judged(a_hang())
    assert record.verdict is Verdict.PASS, record.reason
    assert len(record.proofs) == 4


def _nobody_held(observed: Observed) -> None:
    observed.said[HELD] = observed.said[HELD][:1]


def _entered_all_the_same(observed: Observed) -> None:
    observed.said[HELD].append({"fact": "entered", "at": 20.0, "collective": 4})


def _one_did_not_enter(observed: Observed) -> None:
    observed.said[2] = observed.said[2][:1]


def _completed(observed: Observed) -> None:
    observed.said[0][-1] = {"fact": "completed", "at": 20.1, "seconds": 0.1}


def _failed_at_once(observed: Observed) -> None:
    # A peer that dies breaks the connection: that is no timeout.
    observed.said[0][-1] = {"fact": "failed", "at": 20.1, "seconds": 0.1, "error": "reset"}


def _still_waits(observed: Observed) -> None:
    observed.said[0] = observed.said[0][:2]


def _held_rank_died(observed: Observed) -> None:
    observed.ends[HELD] = -9


def _held_rank_fell_silent(observed: Observed) -> None:
    observed.said[HELD] = observed.said[HELD][:-1]


def _held_rank_is_gone(observed: Observed) -> None:
    observed.state = "X"


@pytest.mark.parametrize(
    "spoil",
    [
        _nobody_held,
        _entered_all_the_same,
        _one_did_not_enter,
        _completed,
        _failed_at_once,
        _still_waits,
        _held_rank_died,
        _held_rank_fell_silent,
        _held_rank_is_gone,
    ],
)
def test_a_hang_of_which_a_part_is_missing_is_inconclusive(
    spoil: Callable[[Observed], None],
) -> None:
    observed = a_hang()
    spoil(observed)
    record = judged(observed)
    assert record.verdict is Verdict.INCONCLUSIVE
    assert record.reason.startswith("not proven that")


def test_ranks_that_said_nothing_are_no_hang() -> None:
    assert judged(Observed(world_size=3, held=HELD)).verdict is Verdict.INCONCLUSIVE


def test_a_rank_that_nccl_aborts_has_timed_out() -> None:
    observed = a_hang()
    for rank in (0, 2):
        observed.said[rank].pop()
        observed.ends[rank], observed.end_s[rank] = -6, 46.0
    assert judged(observed, NCCL).verdict is Verdict.PASS
    assert judged(observed, GLOO).verdict is Verdict.INCONCLUSIVE


def test_nccl_may_abort_the_held_rank_too_but_not_before_the_timeout() -> None:
    observed = a_hang()
    for rank in (0, 2):
        observed.said[rank].pop()
    observed.ends, observed.end_s = {0: -6, 1: -6, 2: -6}, {0: 46.0, 1: 30.0, 2: 46.0}
    assert judged(observed, NCCL).verdict is Verdict.PASS
    observed.said[HELD] = [line for line in observed.said[HELD] if line["at"] < 25.0]
    assert judged(observed, NCCL).verdict is Verdict.INCONCLUSIVE


def _dumped_and_stands(observed: Observed, dump: float) -> None:
    for rank in (0, 2):
        observed.said[rank].pop()
        observed.dump_s[rank] = dump
    observed.said[HELD].append({"fact": "still held", "at": 45.0})


def test_a_rank_that_has_dumped_and_stands_has_timed_out() -> None:
    observed = a_hang()
    _dumped_and_stands(observed, 31.5)
    record = judged(observed, expected("nccl-legacy", "2.15", {}))
    assert record.verdict is Verdict.PASS, record.reason
    assert any("dumped after 11.5 s" in proof.seen for proof in record.proofs)


def test_a_dump_from_before_the_timeout_is_none_of_a_timeout() -> None:
    observed = a_hang()
    _dumped_and_stands(observed, 22.0)
    record = judged(observed, expected("nccl-legacy", "2.15", {}))
    assert record.verdict is Verdict.INCONCLUSIVE
