"""The statistics: quantiles, the correction, the two questions, and how often they err."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.judge import World, kayenta, measure
from keepstep.canary.soft import Loss, Measured, judge_metrics, loss_of, pairs_wanted
from keepstep.canary.student import chance_above, quantile
from keepstep.canary.verdict import SoftResult, Verdict

# One-sided quantiles from the tables of Abramowitz and Stegun, 26.10.
TABLE = {
    (0.95, 1): 6.314,
    (0.95, 2): 2.920,
    (0.95, 4): 2.132,
    (0.95, 8): 1.860,
    (0.99, 4): 3.747,
    (0.995, 30): 2.750,
    (0.9995, 16): 4.015,
}


@pytest.mark.parametrize(("at", "wanted"), TABLE.items())
def test_quantiles_are_those_of_the_tables(at: tuple[float, int], wanted: float) -> None:
    assert quantile(*at) == pytest.approx(wanted, abs=5e-4)


@given(st.floats(0.5, 0.9999), st.integers(1, 120))
def test_a_quantile_is_exceeded_as_often_as_it_says(level: float, freedom: int) -> None:
    assert chance_above(quantile(level, freedom), freedom) == pytest.approx(1 - level, abs=1e-12)


@given(st.floats(-50, 50), st.integers(1, 60))
def test_the_distribution_is_symmetric(t: float, freedom: int) -> None:
    assert chance_above(t, freedom) + chance_above(-t, freedom) == pytest.approx(1)


def measured(ratio: float, noise: float = 0.005, pairs: int = 5, **facts: Any) -> Measured:
    """A metric whose candidate is slower by a factor."""
    chance = random.Random(str(facts.pop("seed", 0)))

    def arm(factor: float) -> list[float | None]:
        return [factor * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]

    values: dict[str, Any] = {
        "metric": "step",
        "reference": arm(1.0),
        "candidate": arm(ratio),
        "same": arm(1.0),
        "margin": 0.05,
    }
    return Measured(**(values | facts))


def answer(metric: Measured) -> SoftResult:
    return judge_metrics([metric])[0]


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.00, 0.005, Verdict.PASS),
        (1.03, 0.005, Verdict.PASS),  # worse, and proven to be within the margin
        (0.90, 0.005, Verdict.PASS),
        (1.10, 0.005, Verdict.FAIL),
        (1.00, 0.080, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_follows_from_ratio_and_noise(
    ratio: float, noise: float, verdict: Verdict
) -> None:
    assert answer(measured(ratio, noise)).verdict is verdict


def test_the_ratio_is_worse_above_one_whatever_the_direction() -> None:
    slower = answer(measured(1.10))
    less = answer(measured(1 / 1.10, metric="throughput"))
    assert slower.ratio == pytest.approx(1.10, abs=0.01)
    assert less.ratio == pytest.approx(1.10, abs=0.01)
    assert less.verdict is Verdict.FAIL
    assert "less throughput" in less.reason


def test_the_opposite_question_has_the_opposite_answer() -> None:
    faster = measured(0.90)
    assert judge_metrics([faster])[0].verdict is Verdict.PASS
    assert judge_metrics([faster], reverse=True)[0].verdict is Verdict.FAIL


def test_many_metrics_make_an_alarm_harder_and_a_pass_no_harder() -> None:
    alone = answer(measured(1.02))
    among = judge_metrics([measured(1.02), *(measured(1.0, seed=n) for n in range(1, 8))])[0]
    assert alone.lower is not None
    assert among.lower is not None
    assert among.lower < alone.lower
    assert among.upper == alone.upper


def test_holm_spends_the_risk_step_by_step() -> None:
    found = judge_metrics([measured(1.10, seed=1), measured(1.10, seed=1), measured(1.0)])
    first, second = found[0].lower, found[1].lower
    assert first is not None
    assert second is not None
    assert first < second  # the same data: 1 % / 3, then 1 % / 2


@pytest.mark.parametrize("arm", ["reference", "candidate", "same"])
@pytest.mark.parametrize("gap", [None, 0.0])
def test_a_run_that_did_not_measure_leaves_no_answer(arm: str, gap: float | None) -> None:
    found = answer(measured(1.0, 0.005, 5, **{arm: [1.0, 1.0, gap, 1.0, 1.0]}))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.startswith("1 of 5 ")
    assert found.ratio is None


def test_an_informative_metric_is_shown_and_decides_nothing() -> None:
    found = answer(measured(1.5, margin=None))
    assert not found.judged
    assert found.ratio == pytest.approx(1.5, abs=0.02)
    assert found.reason == "informative: the plan does not judge it"


def test_equal_values_are_equal() -> None:
    values = [5.0] * 5
    found = answer(measured(1.0, reference=values, candidate=values, same=values))
    assert found.verdict is Verdict.PASS
    assert found.noise == 0
    worse = [5.5] * 5
    assert answer(measured(1.0, reference=values, candidate=worse, same=values)).verdict is (
        Verdict.FAIL
    )


def test_a_round_that_is_slow_for_all_arms_is_no_noise() -> None:
    speed = [1.0, 2.0, 4.0, 3.0, 0.5]
    found = loss_of(measured(1.0, reference=speed, candidate=speed, same=speed))
    assert isinstance(found, Loss)
    assert found.noise == pytest.approx(0, abs=1e-9)


def test_a_candidate_that_is_noisier_gets_its_own_noise() -> None:
    steady = [1.0, 1.001, 0.999, 1.0, 1.001]
    wild = [1.0, 1.2, 0.9, 1.1, 0.85]
    found = loss_of(measured(1.0, reference=steady, same=steady, candidate=wild))
    assert isinstance(found, Loss)
    logs = [math.log(each) for each in wild]
    mean = sum(logs) / 5
    own = math.sqrt(sum((each - mean) ** 2 for each in logs) / 4 / 1.5)
    assert found.noise == pytest.approx(own, rel=0.02)


def test_the_pairs_wanted_are_enough_four_times_in_five() -> None:
    noise, margin = 0.04, math.log1p(0.05)
    wanted = pairs_wanted(Loss(mean=0.0, noise=noise, rounds=5, arms=3), margin, 0.01)
    assert wanted is not None
    answers = [answer(measured(1.0, noise, wanted, seed=n)).verdict for n in range(200)]
    assert 0.72 <= answers.count(Verdict.PASS) / 200 <= 0.95


def test_no_number_of_pairs_helps_at_the_margin() -> None:
    values = [1.00, 1.02, 0.98, 1.01, 0.99]
    slower = [1.049 * each for each in reversed(values)]
    found = answer(measured(1.0, reference=values, candidate=slower, same=values))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.pairs_wanted is None
    assert "not even 60 pairs would tell" in found.reason


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
def test_the_judge_errs_rarely(noise: float) -> None:
    """200 A/A comparisons with at most 1 % alarms; 10 % slower steps found in 95 %, 5 pairs."""
    judge, _ = measure(World(name="quiet"), noise, 5, 200, seed=1)
    assert judge.alarms <= 2
    assert judge.found >= 190
    assert judge.slow_passed == 0


def test_kayentas_rule_needs_five_runs() -> None:
    assert kayenta([1.0, 1.01, 1.02, 1.03, 1.04], [1.2, 1.21, 1.22, 1.23, 1.24])
    assert not kayenta([1.0, 1.1, 1.2, 1.3, 1.4], [1.05, 1.15, 1.25, 1.35, 1.45])
