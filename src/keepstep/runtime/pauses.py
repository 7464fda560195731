"""Moments in which nothing of this process ran, and mostly nothing of its host.

``scontrol suspend``, a frozen container, a migrated virtual machine: when it goes on, everything
looks overdue at once. Whoever waits for somebody asks here since when waiting counts.
"""

from __future__ import annotations

from dataclasses import dataclass

HELD_UP = 1.0  # seconds that a loop may be late before that is more than a busy machine


@dataclass(slots=True)
class Pauses:
    """When a loop was last held up; times are of ``time.monotonic``."""

    woke: float = 0.0  # 0.0: never
    _due: float = 0.0  # when the loop is next to go on

    def will_look(self, now: float, within: float) -> None:
        """Note that the loop goes on in ``within`` seconds at the latest."""
        self._due = now + within

    def look(self, now: float) -> float:
        """Return the seconds for which the loop was held up, 0.0 if it was not."""
        late = now - self._due
        if not self._due or late <= HELD_UP:
            return 0.0
        self.woke = now
        return late
