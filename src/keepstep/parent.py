"""The end of a parent process, as far as its children are concerned."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "KEEPSTEP_PARENT"  # the process that started this one, for those that may come too late


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (prctl PR_SET_PDEATHSIG).

    A parent that died before that is not noticed by the kernel: where it has left its number in the
    environment (``child_of_this``), this process ends at once.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        sys.exit(1)


def child_of_this() -> dict[str, str]:
    """Return what a child that calls ``die_with_parent`` needs in its environment."""
    return {PARENT: str(os.getpid())}
