"""What the operator of ``keepstep run`` reads: one sentence a fact (``run_sentences``).

``Narrator`` leaves out what the reader was told already; ``RunView`` writes the lines. The events
file (``--events``) has every event with all its facts.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO

from keepstep.cli.run_sentences import Fact, sentence
from keepstep.runtime.session import RunResult, Session

# Steps of ordinary work, one a worker: they would bury what matters.
QUIET = frozenset({"worker_joined", "member_formed", "members_formed", "form", "incident"})
CLOSE_TIMEOUT = 5.0  # seconds that a reader who does not read may delay the end
_BEGINNINGS = (
    "stall",
    "straggler",
    "blamed",
    "step_failed",
    "replicas_differ",
    "form_failed",
    "halt",
)


@dataclass(slots=True)
class Narrator:
    """Tells a stranger what happens, each thing once.

    Attributes:
        owns_coordinator: it runs on this host, and its exit is told.
    """

    owns_coordinator: bool = True
    _in_fault: bool = False  # a fault was told and the job is not in step again
    _named: set[int] = field(default_factory=set)  # workers whose fencing was explained
    _lost: set[str] = field(default_factory=set)  # agents reported as lost
    _known: set[int] = field(
        default_factory=set
    )  # workers once ready: a new coordinator hears again
    _over: bool = False

    def tell(self, fact: Fact) -> str | None:
        """Return the line for an event, None for one that adds nothing."""
        event = fact["event"]
        wanted = event not in QUIET and self._adds_something(event, fact)
        self._note(event, fact)
        if not wanted:
            return None
        clock = datetime.fromtimestamp(fact.get("time", 0.0)).strftime("%H:%M:%S")
        return f"{clock} {sentence(fact)}"

    def _adds_something(self, event: str, fact: Fact) -> bool:
        if event == "worker_ready":
            started = fact.get("generation", 0) > 0 and not self._over
            return started and fact.get("rank") is None and fact.get("worker") not in self._known
        if event == "halt":
            return not self._in_fault
        if event == "live":
            return not self._in_fault
        if event == "fence":
            return fact.get("worker") not in self._named
        if event == "agent_back":
            return fact.get("agent") in self._lost
        if event == "agent_gone":
            return "goodbye" not in fact.get("why", "")
        return not (event in ("coordinator_away", "job_joined") and self.owns_coordinator)

    def _note(self, event: str, fact: Fact) -> None:
        if event in _BEGINNINGS:
            self._in_fault = True
            self._named |= {fact.get("worker", -1), *fact.get("outvoted", ())}
        elif event == "worker_exited":
            self._in_fault |= fact.get("rank") is not None
            self._known.add(fact.get("worker", -1))
        elif event == "worker_ready":
            self._known.add(fact.get("worker", -1))
        elif event == "agent_lost_contact":
            self._lost.add(fact.get("agent", ""))
        elif event in ("agent_back", "agent_gone"):
            self._lost.discard(fact.get("agent", ""))
            self._in_fault |= event == "agent_gone"
        elif event == "resumed":
            self._in_fault = False
        elif event in ("finish", "abort", "interrupted"):
            self._over = True


class RunView:
    """Prints one line a fact.

    A thread writes: whoever stops reading the lines must not stop the agent, whose workers would
    be fenced for its silence.
    """

    output: tuple[int | None, int | None] = (None, None)

    def __init__(self, stream: TextIO, narrator: Narrator) -> None:
        """Print to ``stream``."""
        self._stream, self._narrator = stream, narrator
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="keepstep-lines", daemon=True)
        self._writer.start()

    def show(self, fact: Fact) -> None:
        """Print one event if it matters to a person."""
        line = self._narrator.tell(fact)
        if line is not None:
            self._lines.put(f"keepstep {line}\n")

    async def follow(self, session: Session) -> RunResult:
        """Run ``session`` and return its result when every line is written."""
        try:
            return await session.run()
        finally:
            self.close()

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._writer.join(CLOSE_TIMEOUT)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):
                return  # nobody reads any more; the events file has it all
