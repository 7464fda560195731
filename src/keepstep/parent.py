"""The end of a parent process, as far as its children are concerned."""

from __future__ import annotations

import ctypes
import signal


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
