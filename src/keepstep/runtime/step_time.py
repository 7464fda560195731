"""How long a step has taken, and how much of it the rank has waited for others."""

from __future__ import annotations

import time

from keepstep.runtime.progress import ProgressRecord, Slot


class StepTime:
    """The clock of one step at a time."""

    def __init__(self) -> None:
        """No step has begun."""
        self._began = 0  # ns
        self._collective_began = 0.0
        self._waited = 0.0  # seconds in collectives

    def begin(self) -> None:
        """Begin a step."""
        self._began, self._waited = time.monotonic_ns(), 0.0

    def enter_collective(self) -> None:
        """The rank waits for others from now on."""
        self._collective_began = time.monotonic()

    def leave_collective(self) -> None:
        """It goes on by itself."""
        self._waited += time.monotonic() - self._collective_began

    @property
    def has_waited(self) -> bool:
        """Whether the step has been in a collective that keepstep knows of."""
        return self._waited != 0.0

    def stretch(self, slowness: float) -> None:
        """Carry out ``slow``: stretch the time that this rank has spent on the step so far."""
        if slowness > 1.0:
            own = time.monotonic() - self._began / 1e9 - self._waited
            time.sleep(own * (slowness - 1.0))

    def publish(self, progress: ProgressRecord) -> None:
        """Let the agent know of a step that is complete."""
        elapsed = time.monotonic_ns() - self._began
        progress[Slot.STEP_NS] = elapsed
        progress[Slot.BUSY_NS] = elapsed - int(self._waited * 1e9) if self._waited else 0
