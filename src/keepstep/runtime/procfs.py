"""What the kernel says about a process, from /proc."""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK")


def state_and_cpu(pid: int) -> tuple[str, float]:
    """Return the state of the main thread (R, S, D, T, Z; X: gone) and its processor seconds."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return "X", 0.0
    fields = text.rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS
