"""What the kernel says about a process, from /proc."""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK")


def state_and_work(pid: int) -> tuple[str, float]:
    """Return the state of the main thread (R, S, D, T, Z; X: gone) and the seconds of its work.

    That is the time that it ran, and the time that it wanted to and had to wait for a processor:
    on a crowded machine a thread that computes may hardly run.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return "X", 0.0
    fields = text.rpartition(")")[2].split()
    ran = (int(fields[11]) + int(fields[12])) / _TICKS
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            ran_ns, waited_ns, _ = file.read().split()
    except (OSError, ValueError):
        return fields[0], ran  # a kernel without scheduling statistics
    return fields[0], (int(ran_ns) + int(waited_ns)) / 1e9


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if there is none.

    A number that is used again belongs to a process that started later.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return None
