"""What the exit code of every keepstep command means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The verdict of a command, for scripts that call it."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3  # evidence is missing, so neither pass nor fail is true
    INFRASTRUCTURE = 4  # the machine or the set-up failed, not what was examined
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
