"""The eight soft metrics of a cell.

Left out on purpose: memory before the first step and shutdown, which have a hard limit instead.
Each metric more would make every answer weaker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """What is compared, and in which direction it gets worse."""

    unit: str
    says: str  # what a ratio above the margin means, after "n % "
    more_is_worse: bool = True


METRICS: dict[str, Metric] = {
    "init": Metric("s", "longer init_process_group"),
    "first_collective": Metric("s", "longer first collective"),
    "step": Metric("s", "slower steps"),
    "throughput": Metric("elements/s", "less throughput", more_is_worse=False),
    "collective_small": Metric("s", "slower small collectives"),
    "collective_large": Metric("s", "slower large collectives"),
    "point_to_point": Metric("s", "slower point-to-point calls"),
    "memory_peak": Metric("bytes", "more memory at the peak"),
}
