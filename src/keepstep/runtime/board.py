"""The job as it looks from one host at one moment: what the live view and the metrics show."""

from __future__ import annotations

import enum
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keepstep.runtime import protocol as p
from keepstep.runtime.progress import Phase

if TYPE_CHECKING:
    from keepstep.runtime.agent import Agent
    from keepstep.runtime.processes import WorkerProcess

# A wait shorter than this is no news: ranks reach a collective one after the other, and what is
# known of them is some tenths of a second old on this host and a second old of another one.
WORTH_NAMING = 0.3
WORTH_NAMING_REMOTE = 2.5


class Condition(enum.StrEnum):
    """What a worker does, in the words that the operator reads."""

    STARTING = "starting"
    READY = "ready for the start"
    SPARE = "warm spare"
    STEP = "in step"
    COLLECTIVE = "waits in a collective"
    COMMIT = "commits"
    FORMING = "forming"
    WAITING = "waits"
    STOPPED = "stopped"
    FENCED = "being fenced"
    DONE = "done"
    LOST = "lost"
    UNKNOWN = "no news yet"


_OF_PHASE = {
    Phase.STARTING: Condition.STARTING,
    Phase.WAITING: Condition.WAITING,
    Phase.STEP: Condition.STEP,
    Phase.COLLECTIVE: Condition.COLLECTIVE,
    Phase.COMMIT: Condition.COMMIT,
    Phase.FORMING: Condition.FORMING,
    Phase.LEFT: Condition.DONE,
}
_ACTIVE = (Condition.STEP, Condition.COLLECTIVE, Condition.COMMIT, Condition.STOPPED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One worker. Times in seconds."""

    wid: int
    rank: int | None  # None: no member of the generation
    host: str
    pid: int
    condition: Condition
    step: int = 0
    committed: int = 0
    generation: int = 0
    step_seconds: float = 0.0
    busy_seconds: float = 0.0  # of it, the rank's own; 0.0: not known
    age: float = 0.0  # since its last progress; of a starting worker: since its start
    sequence: int = 0
    waits_for: tuple[int, ...] = ()  # ranks
    local: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """The whole picture."""

    host: str
    generation: int
    world_size: int
    committed: int  # newest step count that any rank has committed
    steps: int  # of the job; 0: not known yet
    median_step: float
    spares_ready: int
    recoveries: tuple[tuple[str, str, int], ...]  # fault, action, how many
    exits: tuple[tuple[str, int], ...]  # fault, how many; of workers of this host
    coordinator_up: bool
    lease_left: float
    rows: tuple[Row, ...] = field(default=())


def look(agent: Agent) -> Board:
    """Return what ``agent`` knows now. Reads memory only: no file, no socket, no worker."""
    now = time.monotonic()
    ranks = {wid: rank for rank, wid in enumerate(agent.members)}
    rows = [
        _own_row(agent, worker, ranks.get(worker.wid), now)
        for worker in agent.workers.values()
        if worker.alive or worker.wid in ranks
    ]
    known = agent.overview
    if known is not None:
        rows += [_remote_row(entry, ranks, now - known[0]) for entry in known[1].workers]
    there = {row.wid for row in rows}
    rows += [
        Row(wid=wid, rank=rank, host="", pid=0, condition=Condition.UNKNOWN, local=False)
        for wid, rank in ranks.items()
        if wid not in there
    ]
    if not agent.generation:
        rows = [_before_the_start(row) for row in rows]
    rows.sort(key=lambda row: (row.rank is None, row.rank or 0, row.wid))
    return _board(agent, tuple(name_waits(rows)))


def _before_the_start(row: Row) -> Row:
    """Nobody is a spare as long as nobody has a rank."""
    return replace(row, condition=Condition.READY) if row.condition is Condition.SPARE else row


def _board(agent: Agent, rows: tuple[Row, ...]) -> Board:
    overview = agent.overview[1] if agent.overview is not None else None
    ranked = [row for row in rows if row.rank is not None]
    durations = [row.step_seconds for row in ranked if row.step_seconds > 0]
    exits = Counter(w.exited.fault for w in agent.workers.values() if w.exited is not None)
    return Board(
        host=agent.config.host,
        generation=agent.generation,
        world_size=len(agent.members) or agent.world_size,
        committed=max((row.committed for row in ranked), default=0),
        steps=_steps(agent, overview),
        median_step=overview.median_step
        if overview is not None and overview.median_step
        else statistics.median(durations or [0.0]),
        spares_ready=max(
            sum(row.condition is Condition.SPARE for row in rows),
            overview.spares_ready if overview is not None and not overview.workers else 0,
        ),
        recoveries=tuple((f, a, n) for f, a, n in overview.recoveries) if overview else (),
        exits=tuple(sorted(exits.items())),
        coordinator_up=agent.in_contact,
        lease_left=agent.lease_left,
        rows=rows,
    )


def _steps(agent: Agent, overview: p.Overview | None) -> int:
    if overview is not None and overview.steps:
        return overview.steps
    ready = (worker.standing.get("Ready") for worker in agent.workers.values())
    return max((message.steps for message in ready if isinstance(message, p.Ready)), default=0)


def _own_row(agent: Agent, worker: WorkerProcess, rank: int | None, now: float) -> Row:
    progress = agent.rows.get(worker.wid)
    condition = _condition(rank, "Ready" in worker.standing, worker.fenced, progress)
    if not worker.alive:
        condition = Condition.DONE if agent.ending else Condition.LOST
    age = now - worker.born if condition is Condition.STARTING else None
    pid = worker.process.pid
    return _row(worker.wid, rank, agent.config.host, pid, condition, progress, age, local=True)


def _remote_row(entry: list[Any], ranks: dict[int, int], delay: float) -> Row:
    wid, host, pid, ready, fenced, read = entry
    progress = p.Progress.of(read) if read is not None else None
    rank = ranks.get(wid)
    condition = _condition(rank, ready, fenced, progress)
    age = progress.age + delay if progress is not None else None
    return _row(wid, rank, host, pid, condition, progress, age, local=False)


def _condition(
    rank: int | None, ready: bool, fenced: bool, progress: p.Progress | None
) -> Condition:
    if fenced:
        return Condition.FENCED
    if progress is not None and progress.state in ("T", "t"):
        return Condition.STOPPED
    if rank is None or progress is None:
        return Condition.SPARE if ready else Condition.STARTING
    return _OF_PHASE[Phase(progress.phase)]


def _row(
    wid: int,
    rank: int | None,
    host: str,
    pid: int,
    condition: Condition,
    progress: p.Progress | None,
    age: float | None,
    *,
    local: bool,
) -> Row:
    if progress is None:
        return Row(
            wid=wid,
            rank=rank,
            host=host,
            pid=pid,
            condition=condition,
            age=age or 0.0,
            local=local,
        )
    return Row(
        wid=wid,
        rank=rank,
        host=host,
        pid=pid,
        condition=condition,
        step=progress.step,
        committed=progress.committed,
        generation=progress.generation,
        step_seconds=progress.step_seconds,
        busy_seconds=progress.busy_seconds,
        age=progress.age if age is None else age,
        sequence=progress.sequence,
        local=local,
    )


def name_waits(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` with ``waits_for`` filled in.

    Whoever is in a collective waits for the ranks that have not reached it: the lost ones, those
    that entered fewer collectives, and, of those that entered as many, the ones outside. The same
    evidence as in ``detect``, long before anybody's patience ends.
    """
    members = [row for row in rows if row.rank is not None]
    lost = [row for row in members if row.condition in (Condition.LOST, Condition.FENCED)]
    active = [row for row in members if row.condition in _ACTIVE]
    worth = WORTH_NAMING if all(row.local for row in members) else WORTH_NAMING_REMOTE
    found = []
    for row in rows:
        missing: list[Row] = []
        if row.rank is not None and row.condition in _ACTIVE and row.age >= worth:
            missing = [other for other in active if _is_behind(other, row)]
            if row.condition is Condition.COLLECTIVE:
                missing += lost
        ranks = sorted(other.rank for other in missing if other.rank is not None)
        found.append(replace(row, waits_for=tuple(ranks)))
    return found


def _is_behind(other: Row, waiting: Row) -> bool:
    if other.generation != waiting.generation or other.sequence > waiting.sequence:
        return False
    if other.sequence < waiting.sequence:
        return True  # also when it is in a collective that keepstep does not see, as in DDP
    return waiting.condition is Condition.COLLECTIVE and other.condition is not Condition.COLLECTIVE
