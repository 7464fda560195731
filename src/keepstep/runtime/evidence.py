"""The agent's part in an incident: whom to ask for evidence and when, the folder, the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from keepstep.runtime import protocol as p
from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.agent_events import AgentEvents
from keepstep.runtime.detect import CLOSE
from keepstep.runtime.incidents import IncidentWriter, Judge, ProcessFacts, Witnesses, ending
from keepstep.runtime.processes import Processes, WorkerProcess
from keepstep.runtime.progress import Slot

# Of the patience without progress: time to ask for evidence. CLOSE if a process is stopped.
SUSPECTED = 0.6
EVIDENCE_LIMIT = 10.0  # seconds that the end of the job waits for evidence to be written


class Evidence:
    """Does nothing at all where no incidents are kept.

    Args:
        config: what ``keepstep run`` told the agent.
        processes: the workers of this host.
        events: where it is told that an incident was written, or lost.
        send: to the coordinator.
    """

    def __init__(
        self,
        config: AgentConfig,
        processes: Processes,
        events: AgentEvents,
        send: Callable[[p.Message], None],
    ) -> None:
        """Start nothing until ``prepare``."""
        self._config, self._processes, self._events, self._send = config, processes, events, send
        self._witnesses = Witnesses(config.vault)
        self._judge = Judge()
        self._writing: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """Load the judge's program, in background."""
        if self._config.kept_incidents > 0:
            self._judge.prepare()

    def end(self) -> None:
        """End the judge that waits. May be called twice."""
        self._judge.end()

    def call_witnesses(
        self,
        rows: list[p.Progress],
        ages: dict[int, float],
        *,
        patience: float,
        generation: int,
        is_halted: bool,
    ) -> None:
        """Ask for evidence while a stall is only suspected, so that no recovery waits for it.

        Args:
            rows: the last look at each worker.
            ages: seconds without progress, of the members.
            patience: seconds without progress that are a stall.
            generation: the present one.
            is_halted: it is being left; what was left in it is still wanted.
        """
        if self._config.kept_incidents == 0:
            return
        is_stopped = any(row.state == "T" and row.wid in ages for row in rows)
        limit = (CLOSE if is_stopped else SUSPECTED) * patience
        if not any(age >= limit for age in ages.values()):
            if not is_halted:
                self._witnesses.dismiss(generation)
            return
        if self._witnesses.call():
            self._processes.pass_on(ages, p.Testify())
        for row in rows:
            silent = row.state in ("T", "t") or row.side_age >= SUSPECTED * patience
            if silent and row.wid in ages:
                pid = self._processes.workers[row.wid].process.pid
                self._witnesses.look_into(row.wid, pid, row.generation)

    def keep(self, incident: p.Incident) -> None:
        """Write this host's part of an incident, in background."""
        if self._config.kept_incidents > 0:
            task = asyncio.get_running_loop().create_task(self.write(incident))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def written(self) -> None:
        """Wait, not for long, until what is under way is written."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=EVIDENCE_LIMIT)

    async def write(self, incident: p.Incident) -> None:
        """Write this host's part; where the coordinator wants it, have it judged and say how."""
        began = time.monotonic()
        ours = {wid: _facts_of(worker) for wid, worker in self._processes.workers.items()}
        writer = IncidentWriter(self._config, self._witnesses)
        try:
            folder = await asyncio.to_thread(writer.write, incident, ours)
        except OSError as error:
            self._events.tell("incident_lost", incident=incident.name, why=str(error))
            return
        self._events.tell("incident", incident=incident.name, folder=str(folder))
        if incident.lead == self._config.name:
            verdict = await self._judge.verdict(folder)
            if verdict is None:
                self._events.tell("unjudged", incident=incident.name, folder=str(folder))
            else:
                self._send(
                    p.Judged(
                        incident=incident.name,
                        folder=str(folder),
                        outcome=verdict["verdict"],
                        ranks=verdict["ranks"],
                        fault=verdict["fault"],
                        headline=verdict["headline"],
                        seconds=time.monotonic() - began,
                    )
                )


def _facts_of(worker: WorkerProcess) -> ProcessFacts:
    exited = worker.exited
    how = "" if exited is None or worker.fenced else ending(exited.code)
    return ProcessFacts(
        pid=worker.process.pid, committed=worker.progress[Slot.COMMITTED], ended=how
    )
