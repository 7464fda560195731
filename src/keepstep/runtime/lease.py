"""The agent's lease: how long the workers of its host may compute without the coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from keepstep.runtime.progress import ProgressRecord, Slot
from keepstep.runtime.settings import Times


@dataclass(slots=True)
class Lease:
    """When it ends, and the times that follow from the job's patience."""

    times: Times = field(default_factory=lambda: Times(patience=5.0, median_step=0.0))
    until: float = 0.0  # 0.0: none was given yet
    is_cut_off: bool = False  # told that the lease has ended

    @property
    def left(self) -> float:
        """Seconds that the workers may go on without news of the coordinator."""
        return max(0.0, self.until - time.monotonic())

    def until_after(self, woke: float) -> float:
        """Return when to fence the workers, after this host went on at ``woke``.

        The coordinator gets a whole lease to answer. What the workers compute meanwhile they do not
        use before the lease is extended (``AgentLink.check_lease``).
        """
        return max(self.until, woke + self.times.lease)

    def extend(self, since: float, workers: Iterable[ProgressRecord]) -> None:
        """Count the lease from ``since`` on and let the workers know."""
        self.until = max(self.until, since + self.times.lease)
        self.is_cut_off = False
        for progress in workers:
            self.write(progress)

    def write(self, progress: ProgressRecord) -> None:
        """Let one worker know, through its progress record."""
        progress[Slot.LEASE] = int(self.until * 1e9)
        progress[Slot.PATIENCE] = int(self.times.patience * 1e9)
