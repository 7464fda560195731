"""Random programs with one planted fault: how often the right rank is named, and never a wrong one.

What counts as exact, open and wrong is defined in ``programs``. All seeds are fixed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.verdict import Fault, Outcome
from tests.diagnosis.programs import FAULTS, Planted, plant, score

EACH = 36  # programs for each of the 15 kinds: 540 in all

ALLOWED = {
    "stall": {Fault.STALLED},
    "death": {Fault.DEAD},
    "device_before": {Fault.DEVICE},
    "device_after": {Fault.DEVICE},
    "size": {Fault.MISMATCH},
    "dtype": {Fault.MISMATCH},
    "operation": {Fault.MISMATCH},
    "skip": {Fault.MISMATCH, Fault.STALLED},
    # An extra call may first be felt as another operation at the same place.
    "extra": {Fault.EXTRA_COLLECTIVE, Fault.MISMATCH},
    "uneven": {Fault.UNEVEN_INPUTS},
    "inversion": {Fault.MISMATCH, Fault.EXTRA_COLLECTIVE},
    "lost_receive": {Fault.MISMATCH, Fault.STALLED, Fault.EXTRA_COLLECTIVE},
}


@cache
def planted_programs(fault: str) -> list[Planted]:
    found: list[Planted] = []
    seed = 0
    while len(found) < EACH:
        planted = plant(fault, seed)
        if planted is not None:
            found.append(planted)
        seed += 1
    return found


@pytest.fixture(scope="module")
def tally() -> dict[str, Counter[str]]:
    """How many programs of each kind were answered how."""
    return {
        fault: Counter(score(p, diagnose(p.evidence)) for p in planted_programs(fault))
        for fault in FAULTS
    }


def test_the_culprit_is_named_in_95_of_100(tally: dict[str, Counter[str]]) -> None:
    total = sum(tally.values(), Counter[str]())
    assert total.total() == EACH * len(FAULTS) >= 500
    assert total["exact"] >= 0.95 * total.total(), tally
    assert total["wrong"] <= 0.01 * total.total(), tally


@pytest.mark.parametrize("fault", FAULTS)
def test_no_kind_of_fault_is_left_behind(fault: str, tally: dict[str, Counter[str]]) -> None:
    assert tally[fault]["exact"] >= 0.8 * EACH, tally[fault]


def test_nobody_is_accused_in_a_job_without_a_fault(tally: dict[str, Counter[str]]) -> None:
    assert tally["healthy"] == {"exact": EACH}
    assert tally["under_way"]["wrong"] == 0


@pytest.mark.parametrize("fault", ALLOWED)
def test_the_class_of_the_fault_is_right_where_the_rank_is(fault: str) -> None:
    right = wrong = 0
    for planted in planted_programs(fault):
        verdict = diagnose(planted.evidence)
        if frozenset(verdict.ranks) == planted.guilty:
            right += verdict.fault in ALLOWED[fault]
            wrong += verdict.fault not in ALLOWED[fault]
    assert right > 0
    assert wrong <= 0.05 * (right + wrong), (right, wrong)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_order_of_dumps_changes_nothing(fault: str) -> None:
    planted = planted_programs(fault)[0]
    wanted = diagnose(planted.evidence)
    dumps = list(planted.evidence.dumps)
    for seed in range(5):
        random.Random(seed).shuffle(dumps)
        assert diagnose(replace(planted.evidence, dumps=tuple(dumps))) == wanted


def test_an_unknown_answer_says_what_would_decide() -> None:
    seen = 0
    for fault in ("device_before", "device_after", "under_way"):
        for planted in planted_programs(fault):
            verdict = diagnose(planted.evidence)
            if verdict.outcome is Outcome.UNKNOWN:
                seen += 1
                assert verdict.would_decide
    assert seen
