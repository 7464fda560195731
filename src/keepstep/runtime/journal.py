"""What a coordinator writes down so that another can take up its job.

Only what agents cannot repeat: who had which place, what was decided, what was counted. The rest
comes with their next ``Hello``.

The file begins with the whole job; each later line holds what has changed since the one before.
A line is a checksum and a JSON object. The last one may be cut off by the death of its writer:
nobody was told of what it says, so it is not read.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.runtime.decide import Proof
from keepstep.runtime.membership import Membership
from keepstep.runtime.recoveries import Recoveries, Recovery
from keepstep.runtime.roster import Agent, Change, Incident, Phase, Worker
from keepstep.runtime.settings import Settings
from keepstep.runtime.snapshots import SnapshotRegistry

Record = dict[str, Any]

LARGE = 1 << 20  # bytes of changes after which the file is written anew, when the job is at rest
_PASSING = ("connected", "heard", "leased_until", "answered")
_AGENT = [entry.name for entry in dataclasses.fields(Agent) if entry.name not in _PASSING]
_WORKER = [
    "wid",
    "agent",
    "launched",
    "first_rank",
    "gone",
    "known",
    "fencing",
    "proven",
    "keeper",
]
_RECOVERY = [entry.name for entry in dataclasses.fields(Recovery)]
_PLAIN = [
    "store",
    "generation",
    "start_step",
    "steps",
    "next_wid",
    "outcome",
    "why",
    "exit_code",
    "final_digest",
    "lived",
    "last_live",
    "changes_late",
    "notes_lost",
    "distrust",
    "form_failures",
    "failing_step",
    "longest_lease",
]
_LISTS = ["slots", "owners", "generations"]
_TABLES = ["agents", "workers", "snapshots", "recoveries"]


def _row_of(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    return operator.attrgetter(*names)


_agent_row, _worker_row, _recovery_row = map(_row_of, (_AGENT, _WORKER, _RECOVERY))


class DamagedJournalError(Exception):
    """A line before the last one does not have its checksum."""


# --- the job as JSON values, and back -------------------------------------------------------------


def to_record(job: Membership) -> Record:
    """Return the job as JSON values: plain ones, and tables of rows."""
    incident = job.incident
    plain = {
        "settings": dataclasses.asdict(job.settings),
        "phase": job.phase,
        "fired": sorted(job.fired),
        "failures_at": {str(k): v for k, v in job.failures_at.items()},
        "step_seconds": job.step_seconds[-16:],
        "coordinator_restarts": job.recoveries.coordinator_restarts,
        "spares_lost": job.recoveries.spares_lost,
        "snapshot_interval": job.snapshots.interval,
        "proof": None if job.proof is None else dataclasses.asdict(job.proof),
        "incident": None,
        "incident_members": None,
    }
    plain |= {name: getattr(job, name) for name in _PLAIN}
    plain |= {name: list(getattr(job, name)) for name in _LISTS}
    if incident is not None:
        faults = [dict(fault) for fault in incident.faults]
        plain["incident"] = [incident.generation, incident.step, faults]
        plain["incident_members"] = incident.members
    return {
        "plain": plain,
        "agents": {agent.name: _agent_row(agent) for agent in job.agents.values()},
        "workers": {str(worker.wid): _worker_row(worker) for worker in job.workers.values()},
        "snapshots": job.snapshots.to_rows(),
        "recoveries": {
            str(number): _recovery_row(entry) for number, entry in enumerate(job.recoveries.entries)
        },
    }


def from_record(record: Record, now: float) -> Membership:
    """Return the job in ``record``; its agents get the longest lease from ``now`` to report."""
    plain = record["plain"]
    found = Membership(settings=Settings(**plain["settings"]), store=plain["store"], now=now)
    found.phase = Phase(plain["phase"])
    for name in [*_PLAIN, *_LISTS, "step_seconds"]:
        setattr(found, name, plain[name])
    if plain["proof"] is not None:
        found.proof = Proof(**plain["proof"])
    if plain["incident"] is not None:
        generation, step, faults = plain["incident"]
        found.incident = Incident(generation, step, plain["incident_members"], faults)
    found.fired = set(plain["fired"])
    found.failures_at = {int(k): v for k, v in plain["failures_at"].items()}
    for row in record["agents"].values():
        agent = Agent(**dict(zip(_AGENT, row, strict=True)), connected=False, heard=now)
        agent.leased_until = now + found.longest_lease
        found.agents[agent.name] = agent
    for row in record["workers"].values():
        found.add_worker(Worker(**dict(zip(_WORKER, row, strict=True))))
    found.snapshots = SnapshotRegistry.from_rows(record["snapshots"], plain["snapshot_interval"])
    found.recoveries = Recoveries(
        [Recovery(*row) for row in record["recoveries"].values()],
        plain["coordinator_restarts"] + 1,
        plain["spares_lost"],
    )
    if found.phase in (Phase.HALTING, Phase.FORMING):
        found.change = Change(now)
    found.form_began = now
    return found


# --- what has changed -----------------------------------------------------------------------------


def difference(before: Record, after: Record) -> Record | None:
    """Return what makes ``after`` of ``before``; None: only the whole will do."""
    found: Record = {}
    old, new = before["plain"], after["plain"]
    if plain := {name: value for name, value in new.items() if value != old[name]}:
        found["plain"] = plain
    for table in _TABLES:
        old, new = before[table], after[table]
        if rows := {key: row for key, row in new.items() if old.get(key) != row}:
            found[table] = rows
        if gone := [key for key in old if key not in new]:
            found[f"{table}_gone"] = gone
    kept = [name for name in before["agents"] if name in after["agents"]]
    if kept != [name for name in after["agents"] if name in before["agents"]]:
        return None  # the order of agents says who mirrors whom
    return found


def apply(record: Record, change: Record) -> None:
    """Make the change that ``difference`` returned."""
    record["plain"].update(change.get("plain", {}))
    for table in _TABLES:
        for key in change.get(f"{table}_gone", ()):
            del record[table][key]
        record[table].update(change.get(table, {}))


# --- the file -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Journal:
    """A journal that is being written. The first ``write`` replaces what is there."""

    path: Path
    _last: Record = field(default_factory=dict)
    _descriptor: int = -1
    _appended: int = 0

    def write(self, job: Membership) -> None:
        """Bring the job as it is now to the disk."""
        record = to_record(job)
        change = difference(self._last, record) if self._last else None
        if change is None:
            self._write_whole(record)
        elif change:
            line = _line(change)
            os.write(self._descriptor, line)
            os.fsync(self._descriptor)
            self._appended += len(line)
        self._last = record

    def shorten(self) -> None:
        """Write the whole anew if the changes have become long."""
        if self._appended > LARGE:
            self._write_whole(self._last)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_whole(self, record: Record) -> None:
        """Replace the file: whole or not at all, also after a power cut."""
        self.close()
        temporary = self.path.with_suffix(".tmp")
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(_line(record))
        os.fsync(self._descriptor)
        temporary.rename(self.path)
        self._appended = 0


def load(path: Path, now: float) -> Membership:
    """Return the job in the journal.

    Raises:
        DamagedJournalError: it is not as it was written.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    record: Record = {}
    for number, line in enumerate(lines):
        part = _read(line)
        if part is None:
            if number == 0 or number < len(lines) - 1:
                raise DamagedJournalError(
                    f"{path}, line {number + 1}: the checksum does not fit; a journal is written "
                    "by keepstep alone. Start the job anew"
                )
            break
        if record:
            apply(record, part)
        else:
            record = part
    return from_record(record, now)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _line(record: Record) -> bytes:
    text = _encode(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(line: bytes) -> Record | None:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    found: Record = json.loads(text)
    return found
