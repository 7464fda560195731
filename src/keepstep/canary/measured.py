"""The value of a soft metric in one run: one number over all its ranks, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from keepstep.canary.plan import Job
from keepstep.canary.record import Latency, RankRecord, RunRecord

# The first steps pay for what is made at first use: buckets, pools, cold caches.
WARM_UP_STEPS = 3


def applies(metric: str, job: Job) -> bool:
    """Tell whether a job makes the calls that a metric is about: the plan says it, not the runs."""
    if metric.startswith("collective_"):
        return bool(job.collective)
    return bool(job.point_to_point) if metric == "point_to_point" else True


def value(metric: str, run: RunRecord, job: Job) -> float | None:
    """Return what a run measured; None unless every rank that should know it does.

    The slowest rank decides where all wait for it, and the largest in memory; within a rank, the
    median, so that a few disturbed steps or calls change nothing.
    """
    return _VALUES[metric](run.ranks, job)


def _init(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _most([rank.init_s for rank in ranks])


def _first_collective(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _most([rank.first_collective_s for rank in ranks])


def _step(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    times = [[step.seconds for step in rank.steps[WARM_UP_STEPS:]] for rank in ranks]
    return _most([median(each) if each else None for each in times])


def _throughput(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    """Return elements a second over all steps: unlike the median it feels rare long steps."""
    seconds = _most([sum(step.seconds for step in rank.steps[WARM_UP_STEPS:]) for rank in ranks])
    tokens = [rank.tokens for rank in ranks if rank.tokens]
    steps = {len(rank.steps) for rank in ranks}
    if not seconds or not tokens or len(steps) != 1:
        return None
    counted = 1 - WARM_UP_STEPS / max(steps)
    return sum(tokens) * counted / seconds


def _collective_small(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _latency(ranks, job.collective, min)


def _collective_large(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _latency(ranks, job.collective, max)


def _point_to_point(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _latency(ranks, job.point_to_point, max)


def _memory_peak(ranks: tuple[RankRecord, ...], job: Job) -> float | None:
    return _most([rank.memory_peak for rank in ranks])


_VALUES: dict[str, Callable[[tuple[RankRecord, ...], Job], float | None]] = {
    "init": _init,
    "first_collective": _first_collective,
    "step": _step,
    "throughput": _throughput,
    "collective_small": _collective_small,
    "collective_large": _collective_large,
    "point_to_point": _point_to_point,
    "memory_peak": _memory_peak,
}


def _latency(
    ranks: tuple[RankRecord, ...], operation: str, which: Callable[[list[int]], int]
) -> float | None:
    """Return the median over the ranks of one call at its smallest or largest size."""
    seen = [[each for each in rank.latencies if each.operation == operation] for rank in ranks]
    sizes = [each.bytes for rank in seen for each in rank]
    if not sizes:
        return None
    size = which(sizes)
    found = [_at(each, size) for each in seen]
    known = [each for each in found if each is not None]
    return median(known) if len(known) == len(found) and known else None


def _at(latencies: list[Latency], size: int) -> float | None:
    return next((each.median_s for each in latencies if each.bytes == size), None)


def _most(values: Sequence[float | None]) -> float | None:
    known = [float(each) for each in values if each is not None]
    return max(known) if known and len(known) == len(values) else None
