"""One run with one fault (or none): start, strike, watch, end."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.recovery import metrics
from benchmarks.recovery.job import Job, System
from benchmarks.recovery.marks import COMMIT, READY, Mark, MarkReader
from benchmarks.recovery.metrics import Fault
from benchmarks.recovery.settings import CHECKED_STEP, FIRST_FAULT_STEP, LIMIT, VICTIM, WORLD_SIZE

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
NO_FAULT = "none"

# When the fault strikes, as a share of the median step after the victim's last commit, in turn.
# Early enough that the victim still computes: see metrics.fell_into_exchange.
PHASES = (0.04, 0.07, 0.10, 0.13, 0.16)

START_LIMIT = 300.0  # seconds until the step of the fault is reached; longer is an error
GLANCE = 0.05  # seconds between two looks at the marks
STARE = 0.001  # the same, where the moment of the fault depends on it
SKIPPED = 5  # commits at the beginning that do not count as healthy steps


class TrialError(Exception):
    """A run did not come to the point where it could be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to do."""

    system: System
    kind: str  # kill, stop, none
    number: int

    @property
    def fault_step(self) -> int:
        """The victim is struck after it has completed this step."""
        return FIRST_FAULT_STEP - 1 + self.number % 10

    @property
    def phase(self) -> float:
        """Share of a step between the victim's last commit and the fault."""
        return PHASES[self.number % len(PHASES)]


@dataclass(slots=True)
class Run:
    """A job that runs, and its marks so far."""

    job: Job
    reader: MarkReader

    def wait(self, until: Callable[[], bool], *, pause: float, limit: float) -> bool:
        """Look at the marks until ``until()`` is true; return whether it was within the limit."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            self.reader.update()
            if until():
                return True
            time.sleep(pause)
        return False


@contextlib.contextmanager
def running(system: System) -> Iterator[Run]:
    """Run a job in a folder of its own; no process is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="keepstep-benchmark-") as name:
        job = system.start(Path(name))
        try:
            yield Run(job, MarkReader(Path(name)))
        finally:
            job.close()


def perform(plan: Plan) -> dict[str, Any]:
    """Return the record of one trial.

    Raises:
        TrialError: the job did not reach the step of the fault.
    """
    with running(plan.system) as run:
        if plan.kind == NO_FAULT:
            return _observe(run)
        victim = _wait_for_victim(run, plan)
        step_seconds = _healthy_step(run.reader.marks)
        time.sleep(step_seconds * plan.phase)
        fault = strike(plan.kind, victim.pid)
        run.wait(lambda: _is_over(run, fault) or run.job.ended, pause=GLANCE, limit=LIMIT)
        return {
            "fault_step": victim.step + 1,
            "step_seconds": round(step_seconds, 6),
            "in_exchange": metrics.fell_into_exchange(run.reader.marks, fault),
            **asdict(metrics.measure(run.reader.marks, fault, WORLD_SIZE)),
            "digests": metrics.digests(run.reader.marks, since=fault.time),
        }


def strike(kind: str, pid: int) -> Fault:
    """Send the signal; the time is taken before, so nothing is measured too short."""
    moment = time.monotonic()
    os.kill(pid, SIGNALS[kind])
    return Fault(kind=kind, pid=pid, time=moment)


def _observe(run: Run) -> dict[str, Any]:
    """Return the record of a run without a fault: what the others are compared with."""
    _reach(run, lambda: _reached(run.reader.marks, CHECKED_STEP) >= WORLD_SIZE)
    marks = run.reader.marks
    commits = [mark for mark in marks if mark.event == COMMIT and mark.step <= CHECKED_STEP]
    return {
        "step_seconds": round(_healthy_step(marks), 6),
        "short_steps": len({mark.step for mark in commits if mark.members < WORLD_SIZE}),
        "digests": metrics.digests(marks),
    }


def _wait_for_victim(run: Run, plan: Plan) -> Mark:
    """Return the victim's commit after which it is to be struck."""
    marks = run.reader.marks

    def ready() -> bool:
        return sum(mark.event == READY for mark in marks) >= plan.system.processes

    _reach(run, lambda: ready() and _reached(marks, plan.fault_step - 2) >= WORLD_SIZE)
    seen = len(marks)

    def struck() -> list[Mark]:
        return [m for m in marks[seen:] if _is_commit(m, VICTIM) and m.step >= plan.fault_step]

    _reach(run, lambda: bool(struck()), pause=STARE)
    return struck()[-1]


def _is_commit(mark: Mark, rank: int) -> bool:
    return mark.event == COMMIT and mark.rank == rank


def _reach(run: Run, until: Callable[[], bool], *, pause: float = GLANCE) -> None:
    def tended() -> bool:
        run.job.tend(None)
        return until() or run.job.ended

    reached = run.wait(tended, pause=pause, limit=START_LIMIT)
    if not reached or run.job.ended:
        outputs = sorted(run.job.folder.glob("output*"))
        tail = "\n".join(path.read_text(errors="replace")[-1000:] for path in outputs)
        why = "the job ended" if run.job.ended else f"no progress within {START_LIMIT:g} s"
        raise TrialError(f"{why}; the end of its output:\n{tail}")


def _reached(marks: list[Mark], step: int) -> int:
    """Return how many ranks have committed ``step`` or a later one."""
    return len({mark.rank for mark in marks if mark.event == COMMIT and mark.step >= step})


def _healthy_step(marks: list[Mark]) -> float:
    return metrics.step_seconds(marks, since=0.0, until=time.monotonic(), skip=SKIPPED)


def _is_over(run: Run, fault: Fault) -> bool:
    """Return whether the job is back at full strength and past the step that is compared."""
    marks = run.reader.marks
    recovery = metrics.measure(marks, fault, WORLD_SIZE)
    run.job.tend(fault.pid if recovery.next_step is not None else None)
    if recovery.full_strength is None:
        return False
    since = [mark for mark in marks if mark.time > fault.time + recovery.full_strength]
    return _reached(since, CHECKED_STEP) >= WORLD_SIZE
