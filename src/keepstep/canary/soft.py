"""Soft metrics: interleaved pairs, and whether the candidate is worse by more than the margin.

For each pair the logarithm of candidate over reference; their mean is the loss, and a t interval
says how well it is known. The A/A runs are runs of the reference as well: the candidate is compared
with the mean of both. Two questions, asked apart:

- *Is it not worse?* The upper bound (95 %) is below the margin. A cell passes only when every
  metric passes, so several metrics make a wrong pass rarer, not more frequent: no correction.
- *Is it worse?* A loss is proven (the lower bound is above nothing; 99 %, corrected by Holm for the
  number of metrics) and its best estimate is beyond the margin. Asking that the whole interval is
  beyond it would miss many 10 % slowdowns at 2 % noise; a bare threshold knows no noise. The price:
  a true loss just within the margin may be called one beyond it, but never what is no loss.

Everything else is inconclusive. The noise comes from the pairs and from the A/A runs beside them
(a two-way layout of arms and rounds); the larger estimate is taken, so that neither lucky pairs nor
a candidate that is noisier than the reference make the interval too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from keepstep.canary.metrics import METRICS
from keepstep.canary.student import chance_above, quantile
from keepstep.canary.verdict import SoftResult, Verdict

PASS_RISK = 0.05  # of calling a metric not worse that is worse by the margin
FAIL_RISK = 0.01  # of calling any metric of a cell worse when nothing changed
MOST_PAIRS = 60  # that a plan can have
_SURE = 0.84  # normal quantile of 80 %: the chance that the pairs asked for give an answer

Arm = Sequence[float | None]  # one value a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One metric in the arms of one comparison."""

    metric: str
    reference: Arm
    candidate: Arm
    same: Arm | None  # None: the plan has no A/A runs of this reference, or this is their cell
    margin: float | None  # None: informative


@dataclass(frozen=True, slots=True)
class Loss:
    """The mean log ratio, above 0 where the candidate is worse, and how well it is known."""

    mean: float
    noise: float  # standard deviation of one run
    rounds: int
    arms: int

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the noise."""
        return (self.arms - 1) * (self.rounds - 1)

    def error(self, rounds: int | None = None) -> float:
        """Return the standard error of the mean, or what it would be with more rounds."""
        return self.noise * math.sqrt(self.spread / (rounds or self.rounds))

    @property
    def spread(self) -> float:
        """Variance of a round's difference, with that of one run as 1."""
        return 1 + 1 / (self.arms - 1)

    @property
    def chance(self) -> float:
        """Chance of seeing this loss, or a larger one, when there is none."""
        if not self.error():
            return 0.0 if self.mean > 0 else 1.0
        return chance_above(self.mean / self.error(), self.freedom)

    def bound(self, risk: float, side: int) -> float:
        """Return the one-sided bound of the mean; ``side`` is 1 for the upper one."""
        return self.mean + side * quantile(1 - risk, self.freedom) * self.error()


def judge_metrics(measured: Sequence[Measured], *, reverse: bool = False) -> list[SoftResult]:
    """Return the answer for each metric of a cell.

    Args:
        measured: The metrics; the correction is for those that have data and a margin.
        reverse: Ask whether the reference is worse than the candidate instead.
    """
    losses = [loss_of(each, reverse=reverse) for each in measured]
    judged = [
        (loss, number)
        for number, (each, loss) in enumerate(zip(measured, losses, strict=True))
        if isinstance(loss, Loss) and each.margin is not None
    ]
    risks = _holm([(loss.chance, number) for loss, number in judged])
    return [
        _result(each, loss, risks.get(number, FAIL_RISK))
        for number, (each, loss) in enumerate(zip(measured, losses, strict=True))
    ]


def loss_of(measured: Measured, *, reverse: bool = False) -> Loss | str:
    """Return the loss, or why there is none."""
    arms = [measured.reference, measured.candidate]
    arms += [] if measured.same is None else [measured.same]
    names = ("reference", "candidate", "A/A")
    logs: list[list[float]] = []
    for name, arm in zip(names, arms, strict=False):
        known = [math.log(each) for each in arm if each is not None and each > 0]
        if len(known) < len(arm):
            return f"{len(arm) - len(known)} of {len(arm)} {name} runs did not measure it"
        logs.append(known)
    rounds = len(logs[0])
    if rounds < 2:
        return "one pair says nothing about the noise"
    sign = 1 if METRICS[measured.metric].more_is_worse != reverse else -1
    before = [fmean(round_) for round_ in zip(logs[0], *logs[2:], strict=True)]
    ratios = [sign * (new - old) for old, new in zip(before, logs[1], strict=True)]
    spread = 1 + 1 / (len(logs) - 1)
    noise = math.sqrt(max(variance(ratios) / spread, _residual(logs)))
    return Loss(mean=fmean(ratios), noise=noise, rounds=rounds, arms=len(logs))


def _residual(arms: list[list[float]]) -> float:
    """Return the variance of one run, free of what differs between arms and between rounds."""
    grand = fmean(value for arm in arms for value in arm)
    means = [fmean(arm) for arm in arms]
    rounds = [fmean(values) for values in zip(*arms, strict=True)]
    squares = sum(
        (value - mean - round_ + grand) ** 2
        for arm, mean in zip(arms, means, strict=True)
        for value, round_ in zip(arm, rounds, strict=True)
    )
    return squares / ((len(arms) - 1) * (len(rounds) - 1))


def _holm(chances: list[tuple[float, int]]) -> dict[int, float]:
    """Return the risk that each metric may take, by Holm's step-down rule (1979)."""
    risks: dict[int, float] = {}
    left, stopped = len(chances), False
    for chance, number in sorted(chances):
        risks[number] = FAIL_RISK / left
        stopped = stopped or chance > risks[number]
        left -= 0 if stopped else 1
    return risks


def _result(measured: Measured, loss: Loss | str, risk: float) -> SoftResult:
    metric = METRICS[measured.metric]
    judged = measured.margin is not None
    if isinstance(loss, str):
        return SoftResult(
            metric=measured.metric,
            unit=metric.unit,
            verdict=Verdict.INCONCLUSIVE,
            judged=judged,
            margin=measured.margin or 0.0,
            pairs=_whole_pairs(measured),
            reason=loss,
        )
    lower, upper = loss.bound(risk, -1), loss.bound(PASS_RISK, 1)
    verdict, wanted, reason = Verdict.INCONCLUSIVE, None, "informative: the plan does not judge it"
    if measured.margin is not None:
        verdict = _verdict(loss, lower, upper, math.log1p(measured.margin))
        if verdict is Verdict.INCONCLUSIVE:
            wanted = pairs_wanted(loss, math.log1p(measured.margin), risk)
        reason = _reason(measured.metric, loss, lower, upper, measured.margin, verdict, wanted)
    return SoftResult(
        metric=measured.metric,
        unit=metric.unit,
        verdict=verdict,
        judged=judged,
        reference=median(each for each in measured.reference if each is not None),
        candidate=median(each for each in measured.candidate if each is not None),
        ratio=math.exp(loss.mean),
        lower=math.exp(lower),
        upper=math.exp(upper),
        margin=measured.margin or 0.0,
        pairs=loss.rounds,
        pairs_wanted=wanted,
        noise=loss.noise,
        reason=reason,
    )


def _verdict(loss: Loss, lower: float, upper: float, margin: float) -> Verdict:
    if upper < margin:
        return Verdict.PASS
    return Verdict.FAIL if lower > 0 and loss.mean > margin else Verdict.INCONCLUSIVE


def pairs_wanted(loss: Loss, margin: float, risk: float) -> int | None:
    """Return how many pairs would give an answer in four of five cases; None: no plan can.

    It holds if the loss and the noise are what has been seen so far.
    """
    away = loss.mean
    if loss.mean <= margin:
        away, risk = margin - loss.mean, PASS_RISK
    for rounds in range(loss.rounds + 1, MOST_PAIRS + 1):
        needed = quantile(1 - risk, (loss.arms - 1) * (rounds - 1)) + _SURE
        if needed * loss.error(rounds) < away:
            return rounds
    return None


def _reason(
    metric: str,
    loss: Loss,
    lower: float,
    upper: float,
    margin: float,
    verdict: Verdict,
    wanted: int | None,
) -> str:
    allowed = f"up to {100 * margin:g} % is allowed"
    says = METRICS[metric].says
    seen = f"{_percent(loss.mean)} {says}" if loss.mean > 0 else f"no {says}"
    if verdict is Verdict.PASS:
        most = f"at most {_percent(upper)}" if upper > 0 else "none"
        return f"{seen}, {most} (95 % sure); {allowed}"
    if verdict is Verdict.FAIL:
        return f"{seen}, at least {_percent(lower)} (99 % sure); {allowed}"
    more = (
        f"about {wanted} pairs would tell"
        if wanted
        else f"not even {MOST_PAIRS} pairs would tell: quieten the machine, widen the margin, or "
        "declare it informative in the plan"
    )
    return (
        f"{seen}, and equal runs vary by {100 * loss.noise:.1f} %: {loss.rounds} pairs cannot tell "
        f"whether that is more than {100 * margin:g} %; {more}"
    )


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):.1f} %"


def _whole_pairs(measured: Measured) -> int:
    both = zip(measured.reference, measured.candidate, strict=False)
    return sum(old is not None and new is not None for old, new in both)
