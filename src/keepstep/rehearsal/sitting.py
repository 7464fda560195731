"""How long one sitting of a rehearsal may begin new things: an allocation ends, a folder stays."""

from __future__ import annotations

import time
from collections.abc import Callable


def never() -> bool:
    """Return that there is time."""
    return False


def over_after(minutes: float | None) -> Callable[[], bool]:
    """Return what tells whether so many minutes from now are over; None: they never are."""
    if minutes is None:
        return never
    end = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= end
