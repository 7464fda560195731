"""What lies between two steps: from the return of one to the begin of the next, in one thread.

Under `keepstep run` that is all that the training thread itself does for supervision. Used inside
the training processes: standard library only.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from benchmarks.recovery.marks import folder

SKIPPED = 10  # steps at the begin


class Between:
    """Measures the time between steps of this process."""

    def __init__(self) -> None:
        """Begin."""
        self._left: tuple[float, float] | None = None
        self._gaps: list[tuple[float, float]] = []

    def enter(self) -> None:
        """A step begins."""
        if self._left is not None:
            now = (time.thread_time(), time.perf_counter())
            self._gaps.append((now[0] - self._left[0], now[1] - self._left[1]))

    def leave(self) -> None:
        """A step is over."""
        self._left = (time.thread_time(), time.perf_counter())

    def write(self) -> None:
        """Leave the medians: seconds of processor time and of the clock."""
        gaps = self._gaps[SKIPPED:]
        medians = [statistics.median(gap[place] for gap in gaps) for place in (0, 1)]
        path = folder() / f"between-{os.getpid()}"
        path.with_suffix(".tmp").write_text(json.dumps(medians))
        path.with_suffix(".tmp").rename(path)


def read(place: Path, ranks: int) -> tuple[float, float] | None:
    """Return processor time and time of the rank for which they are greatest, in seconds.

    None: not all of the ranks have written theirs yet.
    """
    found = [json.loads(path.read_text()) for path in place.glob("between-*[0-9]")]
    if len(found) < ranks:
        return None
    return max(each[0] for each in found), max(each[1] for each in found)
