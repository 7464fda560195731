"""Processor time, for bounds that hold on a busy machine too."""

from __future__ import annotations

import os


def used() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])
