"""The settings of a job, and the times that follow from its one patience."""

from __future__ import annotations

from dataclasses import dataclass

MIN_PATIENCE = 1.0  # seconds; below, an ordinary hiccup of a host would look like a fault
PATIENCE_PER_STEP = 5.0  # median step times without any progress before a rank counts as stalled
LEASE_PER_PATIENCE = 3.0
LONGEST_PATIENCE = 86_400.0
MIN_LEASE = 3.0
BUSY_HOST = 3.0  # seconds that a survivor may need on top where a host has more to do than it can
START_ALLOWANCE = 300.0  # imports, device context and model of a starting worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What ``keepstep run`` was asked for.

    Attributes:
        workers, spares: on each agent.
        min_agents, max_agents: agents needed to start, and accepted at most.
        patience: seconds, or None to derive it from the running median of step times.
        on_loss: replace, shrink or wait.
        max_recoveries: the job ends with exit code 1 when one more would be needed.
    """

    workers: int
    spares: int
    min_agents: int = 1
    max_agents: int = 1
    patience: float | None = None
    on_loss: str = "replace"
    max_recoveries: int = 1000

    @property
    def world_size(self) -> int:
        """Ranks of the job; workers of agents beyond ``min_agents`` are spares."""
        return self.workers * self.min_agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Every timeout, in seconds, derived from patience and the median step time."""

    patience: float
    median_step: float

    @classmethod
    def derive(cls, asked: float | None, median_step: float) -> Times:
        """Return the times for what the user asked and what was measured (0.0: nothing yet)."""
        patience = asked if asked is not None else PATIENCE_PER_STEP * median_step
        floor = 0.0 if asked is not None else MIN_PATIENCE
        return cls(patience=max(floor, patience), median_step=median_step)

    @property
    def lease(self) -> float:
        """Without news of the coordinator for this long, a cut-off agent fences its workers."""
        return max(MIN_LEASE, LEASE_PER_PATIENCE * self.patience)

    @property
    def beat(self) -> float:
        """Time between two progress messages of an agent when nothing is suspicious."""
        return min(1.0, max(0.1, self.patience / 2))

    @property
    def urgent_beat(self) -> float:
        """The same while a rank stalls, besides the message when that shows."""
        return min(1.0, max(0.05, self.patience / 8))

    @property
    def poll(self) -> float:
        """Time between two looks at the progress records while all of them are young."""
        return min(0.25, max(0.02, self.patience / 4))

    @property
    def close_poll(self) -> float:
        """The same when one has become old: a stall is seen this much late."""
        return min(0.1, max(0.02, self.patience / 40))

    @property
    def leave_step(self) -> float:
        """A halted survivor must have left its step by then, or it is fenced as well."""
        return 2 * self.patience + 2 * self.median_step + BUSY_HOST

    @property
    def form(self) -> float:
        """Limit of one attempt to reconfigure."""
        return max(2.0, self.patience)

    @property
    def form_and_transfer(self) -> float:
        """A member that has not entered the new generation by then is fenced."""
        return self.form + 60.0 + self.patience


def contradiction(settings: Settings) -> str | None:
    """Return why these settings cannot work together, or None."""
    if settings.patience is not None and not settings.patience <= LONGEST_PATIENCE:
        return (
            f"--patience {settings.patience:g}: a number of seconds is wanted, at most "
            f"{LONGEST_PATIENCE:g} (a day)"
        )
    if settings.patience is not None and settings.patience < 0.2:
        return (
            f"--patience {settings.patience:g} is too short: a rank would be fenced for a pause "
            "that every healthy process makes. Use 0.2 or more, or leave it out: it is then "
            "derived from the measured step time"
        )
    if settings.spares > 8 * settings.workers:
        return (
            f"--spares {settings.spares} for --workers {settings.workers}: a spare holds a whole "
            f"model in memory and does nothing; use at most {8 * settings.workers}"
        )
    if settings.min_agents > settings.max_agents:
        return (
            f"--nnodes {settings.min_agents}:{settings.max_agents}: the minimum is larger than the "
            "maximum"
        )
    return None
