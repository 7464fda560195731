"""Processor time of a run: what it costs the machine, whatever else the machine does."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

SIDE = "python"  # what Linux calls a thread that Python started, as the side thread of a worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """Seconds of processor time.

    Attributes:
        training: by the threads of the ranks that train and communicate.
        supervision: by all else: launcher, agent, coordinator, store, spare, side threads of ranks.
    """

    training: float
    supervision: float

    def since(self, earlier: Used) -> Used:
        """Return what was used since then."""
        return Used(
            training=self.training - earlier.training,
            supervision=self.supervision - earlier.supervision,
        )


def used(pids: Collection[int], ranks: Collection[int]) -> Used:
    """Return what these processes have used; ``ranks`` are those of them that are a rank."""
    training = supervision = 0.0
    for pid in pids:
        for thread, name, seconds in _threads(pid):
            if pid in ranks and (thread == pid or name != SIDE):
                training += seconds
            else:
                supervision += seconds
    return Used(training=training, supervision=supervision)


def _threads(pid: int) -> list[tuple[int, str, float]]:
    """Return number, name and processor time of each thread; none of a process that has ended."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            # The first number of schedstat is nanoseconds on a processor, where stat has ticks.
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            found.append((int(task.name), (task / "comm").read_text().strip(), nanoseconds / 1e9))
    return found
