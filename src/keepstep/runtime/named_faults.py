"""Faults on purpose whose target is no rank: the coordinator, a spare. The agent carries them out.

It also keeps which of all faults have happened, in its workers too: a coordinator that dies might
not have heard it, and would have them happen again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from keepstep.runtime import protocol as p
from keepstep.runtime.inject import Injection
from keepstep.runtime.processes import WorkerProcess, kill_group


class NamedFaults:
    """The plan, and what has come of it.

    Args:
        kill_coordinator: None where the coordinator is not ours.
        send: to the coordinator.
    """

    def __init__(
        self, kill_coordinator: Callable[[], None] | None, send: Callable[[p.Message], None]
    ) -> None:
        """Nothing is planned until ``plan`` is set."""
        self.plan: tuple[Injection, ...] = ()
        self._kill_coordinator, self._send = kill_coordinator, send
        self._fired: dict[int, tuple[p.Fired, float]] = {}  # and when it was said

    def note(self, message: p.Fired) -> None:
        """Note that a fault has happened."""
        self._fired[message.index] = (message, time.monotonic())

    def again(self) -> list[p.Message]:
        """Return what is to be repeated to a coordinator that may have died before it heard."""
        now = time.monotonic()
        return [replace(message, ago=now - said) for message, said in self._fired.values()]

    def fire_due(self, newest: int, alive: list[WorkerProcess], members: list[int]) -> None:
        """Carry out what is due when the job has committed ``newest`` steps."""
        for injection in self.plan:
            due = injection.rank is None and injection.step is not None
            if due and injection.index not in self._fired and newest >= (injection.step or 0):
                self._fire(injection, alive, members)

    def _fire(self, injection: Injection, alive: list[WorkerProcess], members: list[int]) -> None:
        if injection.target == "coordinator" and self._kill_coordinator is not None:
            self._tell(-1, injection)
            self._kill_coordinator()
        elif injection.target == "spare":
            spares = [w for w in alive if "Ready" in w.standing and w.wid not in members]
            if spares:
                self._tell(spares[0].wid, injection)
                kill_group(spares[0].process.pid)

    def _tell(self, wid: int, injection: Injection) -> None:
        message = p.Fired(wid=wid, index=injection.index, step=injection.step or 0)
        self.note(message)
        self._send(message)
