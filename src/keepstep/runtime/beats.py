"""What the agent sees of its workers without asking them, and when the coordinator is told."""

from __future__ import annotations

import time

from keepstep.runtime import procfs
from keepstep.runtime import protocol as p
from keepstep.runtime.detect import CLOSE
from keepstep.runtime.processes import WorkerProcess
from keepstep.runtime.progress import Slot, seconds_since
from keepstep.runtime.settings import Times


class Beats:
    """Decides when the progress of all workers is due at the coordinator."""

    def __init__(self) -> None:
        """The first beat is due at once."""
        self._last = 0.0
        self._stalled: set[int] = set()  # members that had run out of patience then

    def is_calm(self, now: float, times: Times) -> bool:
        """Return whether none is due unless somebody has stalled since the last one."""
        return not self._stalled and now - self._last < times.beat

    def due(self, now: float, stalled: set[int], times: Times) -> bool:
        """Return whether to send one now: when it is time, at once when a stall shows."""
        interval = times.urgent_beat if stalled else times.beat
        if stalled == self._stalled and now - self._last < interval:
            return False
        self._stalled, self._last = stalled, now
        return True


def glance(worker: WorkerProcess, now: float, patience: float) -> bool:
    """Return whether the worker has made progress so lately that nothing else needs to be known.

    The collectives that it has entered by now are noted: they are no news to the next full look.
    """
    worker.sequence = (worker.progress.fields[Slot.SEQUENCE], worker.sequence[1])
    return now - worker.progress.fields[Slot.CHANGED] / 1e9 < CLOSE * patience


def beat(now: float, rows: list[p.Progress]) -> p.Beat:
    """Return the message."""
    return p.Beat(sent=now, workers=[list(progress) for progress in rows])


def read_progress(worker: WorkerProcess, patience: float, woke: float) -> p.Progress:
    """Return what the worker's record and the kernel say about it.

    Nobody's age is counted from before ``woke``, when this host last went on after a pause.
    """
    now = time.monotonic_ns()
    record = worker.progress
    sequence = record[Slot.SEQUENCE]
    if sequence != worker.sequence[0]:
        # It shows late, so it counts as progress only in a step that has become long.
        is_news = seconds_since(record[Slot.CHANGED], now) >= patience / 2
        worker.sequence = (sequence, now if is_news else worker.sequence[1])
    awake = int(woke * 1e9)
    changed = _latest(record[Slot.CHANGED], worker.sequence[1], awake)
    age = 0.0 if record[Slot.ALLOWED_UNTIL] > now else seconds_since(changed, now)
    state, cpu = "S", False
    if age >= CLOSE * patience:
        state, used = procfs.state_and_work(worker.process.pid)
        cpu = used - worker.cpu[0] > 0.2 * (now - worker.cpu[1]) / 1e9
        worker.cpu = (used, now)
    return p.Progress(
        wid=worker.wid,
        generation=record[Slot.GENERATION],
        step=record[Slot.STEP],
        committed=record[Slot.COMMITTED],
        phase=record[Slot.PHASE],
        age=round(age, 4),
        side_age=round(seconds_since(_latest(record[Slot.SIDE], awake), now), 4),
        sequence=sequence,
        state=state,
        cpu=cpu,
        step_seconds=record[Slot.STEP_NS] / 1e9,
        busy_seconds=record[Slot.BUSY_NS] / 1e9,
    )


def _latest(first: int, *others: int) -> int:
    """Return the latest of these moments, 0 if the first has not come yet."""
    return max(first, *others) if first else 0
