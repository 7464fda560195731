"""The book of faults: what was lost, what was done, how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Recovery:
    """One fault and its end. Times in seconds after the fault."""

    fault: str
    rank: int | None
    worker: int | None
    step: int
    action: str
    since: float  # when it happened: the injection, or the last sign of life
    detected: float
    resumed: float | None = None
    full: float | None = None
    lost_steps: int = 0
    source: str = ""
    score: float | None = None  # of a straggler
    step_before: float | None = None  # median step time before a straggler was swapped

    def summary(self) -> dict[str, Any]:
        """Return the facts under the names used in the run's summary."""
        facts: dict[str, Any] = {
            "fault": self.fault,
            "rank": self.rank,
            "worker": self.worker,
            "step": self.step,
            "action": self.action,
            "state_from": self.source,
            "detected_after_s": _span(self.since, self.detected),
            "next_step_after_s": _span(self.since, self.resumed),
            "full_strength_after_s": _span(self.since, self.full),
            "lost_steps": self.lost_steps,
        }
        if self.score is not None:
            facts["straggler_score"] = round(self.score, 3)
            facts["median_step_before_s"] = self.step_before
        return facts


def _span(begin: float, end: float | None) -> float | None:
    return None if end is None else round(max(0.0, end - begin), 4)


@dataclass(slots=True)
class Recoveries:
    """All recoveries of a job, in order."""

    entries: list[Recovery] = field(default_factory=list)
    coordinator_restarts: int = 0
    spares_lost: int = 0
    _fired: dict[int, float] = field(default_factory=dict)  # worker -> moment of its injection

    @property
    def count(self) -> int:
        """Number of recoveries so far."""
        return len(self.entries)

    def last_reason(self) -> str:
        """Return the newest fault in words."""
        if not self.entries:
            return "none"
        last = self.entries[-1]
        return f"{last.fault} of rank {last.rank}"

    def on_fired(self, wid: int, moment: float) -> None:
        """Note when an injected fault happened: better than a last sign of life."""
        self._fired[wid] = moment
        for entry in self.entries:
            if entry.worker == wid and entry.resumed is None:
                entry.since = min(moment, entry.detected)

    def begin(
        self,
        *,
        wid: int | None,
        rank: int | None,
        fault: str,
        action: str,
        step: int,
        since: float,
        now: float,
    ) -> None:
        """Open an entry; if this worker's fault is being dealt with already, note what is new."""
        known = [e for e in self.entries if e.worker == wid and e.resumed is None]
        if wid is not None and known:
            if known[0].action == "retry":
                known[0].action = action
            return
        moment = self._fired.pop(wid, since) if wid is not None else since
        self.entries.append(Recovery(fault, rank, wid, step, action, min(moment, now), now))

    def add_unnamed_corruption(self, now: float, step: int) -> None:
        """Replicas differ and no majority says whose is right."""
        if not any(e.fault == "corrupt" and e.resumed is None for e in self.entries):
            self.entries.append(Recovery("corrupt", None, None, step, "retry", now, now))

    @property
    def open(self) -> bool:
        """Whether a fault is being dealt with."""
        return any(entry.resumed is None for entry in self.entries)

    def set_action(self, action: str, workers: set[int | None]) -> None:
        """Note what is done about the loss of these workers."""
        for entry in self.entries:
            if entry.resumed is None and entry.worker in workers:
                entry.action = action

    def expect_gain(self, median_step: float, score: float) -> None:
        """Note why a straggler is being swapped."""
        self.entries[-1].score = score
        self.entries[-1].step_before = round(median_step, 4)

    def on_decision(self, start_step: int, source: str, reached: int) -> int:
        """Note where the next generation starts; returns the number of steps to repeat.

        ``reached`` is the newest step count that a survivor had committed: progress messages are
        up to a second old, so it was not known when the fault was seen.
        """
        lost = 0
        for entry in self.entries:
            if entry.resumed is None:
                entry.source = source
                entry.step = max(entry.step, reached)
                entry.lost_steps = max(entry.lost_steps, entry.step - start_step, 0)
                lost = max(lost, entry.lost_steps)
        return lost

    def on_resumed(self, moment: float, *, full: bool) -> float | None:
        """The first step of a generation is committed; returns the time since the newest fault."""
        cost = None
        for entry in self.entries:
            if entry.resumed is None:
                entry.resumed = moment
                cost = moment - entry.detected
            if full and entry.full is None:
                entry.full = moment
        return cost

    def last_healed(self, members: list[int]) -> dict[str, Any]:
        """Return the facts about the losses that the last resumed step ended."""
        moment = max(entry.resumed for entry in self.entries if entry.resumed is not None)
        healed = [entry for entry in self.entries if entry.resumed == moment]
        return {
            "since_s": round(max(moment - entry.since for entry in healed), 4),
            "lost_steps": max(entry.lost_steps for entry in healed),
            "replaced": [
                [entry.rank, members[entry.rank]]
                for entry in healed
                if entry.rank is not None
                and entry.rank < len(members)
                and members[entry.rank] != entry.worker
            ],
        }

    def spare_lost(self) -> None:
        """A ready spare died."""
        self.spares_lost += 1
