"""Processor time of a run: what it costs the machine, whatever else the machine does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def used(pids: Iterable[int]) -> float:
    """Return the seconds that these processes, and children that they waited for, have used."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            # The name in parentheses may hold spaces; utime is field 14 of proc(5).
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) * _TICK
    return total
