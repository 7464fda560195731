"""Student's t distribution for whole degrees of freedom, from the standard library alone.

The finite sums are formulas 26.7.3 and 26.7.4 of Abramowitz and Stegun, Handbook of Mathematical
Functions (1964): exact, and short for the few degrees of freedom that a canary has.
"""

from __future__ import annotations

import math
from functools import cache


def chance_above(t: float, freedom: int) -> float:
    """Return the probability that a t of ``freedom`` degrees is above ``t``."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    return (1 - math.copysign(_within(abs(t), freedom), t)) / 2


@cache
def quantile(level: float, freedom: int) -> float:
    """Return the t that is exceeded with probability ``1 - level``, for a level above one half."""
    low, high = 0.0, 1.0
    while chance_above(high, freedom) > 1 - level:
        low, high = high, 2 * high
    for _ in range(80):  # halves the width to below the last bit of a float
        middle = (low + high) / 2
        low, high = (middle, high) if chance_above(middle, freedom) > 1 - level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of being between -t and t."""
    theta = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    if freedom % 2 == 0:  # 26.7.4
        term = total = 1.0
        for k in range(1, freedom // 2):
            term *= (2 * k - 1) / (2 * k) * cosine**2
            total += term
        return sine * total
    if freedom == 1:
        return 2 * theta / math.pi
    term = total = cosine  # 26.7.3
    for k in range(1, (freedom - 1) // 2):
        term *= 2 * k / (2 * k + 1) * cosine**2
        total += term
    return 2 / math.pi * (theta + sine * total)
