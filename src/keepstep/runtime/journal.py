"""What a coordinator writes down so that another can take up its job.

Only what agents cannot repeat: who had which place, what was decided, what was counted. The rest
comes with their next ``Hello``.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from keepstep.runtime.membership import Membership
from keepstep.runtime.recoveries import Recoveries
from keepstep.runtime.roster import Agent, Change, Incident, Phase, Worker
from keepstep.runtime.settings import Settings
from keepstep.runtime.snapshots import SnapshotRegistry

_AGENT_FIELDS = [entry.name for entry in dataclasses.fields(Agent)]


def to_record(job: Membership) -> dict[str, Any]:
    """Return the job as JSON values."""
    return {
        "settings": dataclasses.asdict(job.settings),
        "store": job.store,
        "phase": job.phase,
        "generation": job.generation,
        "slots": job.slots,
        "owners": job.owners,
        "start_step": job.start_step,
        "steps": job.steps,
        "next_wid": job.next_wid,
        "fired": sorted(job.fired),
        "failures_at": {str(k): v for k, v in job.failures_at.items()},
        "generations": job.generations,
        "outcome": job.outcome,
        "why": job.why,
        "exit_code": job.exit_code,
        "final_digest": job.final_digest,
        "lived": job.lived,
        "form_failures": job.form_failures,
        "failing_step": job.failing_step,
        "incident": None if job.incident is None else dataclasses.asdict(job.incident),
        "agents": [
            {name: getattr(agent, name) for name in _AGENT_FIELDS} for agent in job.agents.values()
        ],
        "workers": [
            [
                w.wid,
                w.agent,
                w.launched,
                w.first_rank,
                w.gone,
                w.known,
                w.fencing,
                w.proven,
                w.keeper,
            ]
            for w in job.workers.values()
        ],
        "snapshots": job.snapshots.to_record(),
        "recoveries": job.recoveries.to_record(),
        "step_seconds": job.step_seconds[-16:],
    }


def from_record(record: dict[str, Any], now: float) -> Membership:
    """Return the job in ``record``; its agents get a full lease from ``now`` to report."""
    found = Membership(settings=Settings(**record["settings"]), store=record["store"], now=now)
    found.phase = Phase(record["phase"])
    for name in (
        "generation",
        "slots",
        "owners",
        "start_step",
        "steps",
        "next_wid",
        "generations",
        "outcome",
        "why",
        "exit_code",
        "final_digest",
        "lived",
        "form_failures",
        "failing_step",
        "step_seconds",
    ):
        setattr(found, name, record[name])
    if record["incident"] is not None:
        found.incident = Incident(**record["incident"])
    found.fired = set(record["fired"])
    found.failures_at = {int(k): v for k, v in record["failures_at"].items()}
    for entry in record["agents"]:
        found.agents[entry["name"]] = Agent(**{**entry, "connected": False, "heard": now})
    for wid, agent, launched, rank, gone, known, fencing, proven, keeper in record["workers"]:
        found.workers[wid] = Worker(
            wid,
            agent,
            launched,
            first_rank=rank,
            gone=gone,
            known=known,
            fencing=fencing,
            proven=proven,
            keeper=keeper,
        )
    found.snapshots = SnapshotRegistry.from_record(record["snapshots"])
    found.recoveries = Recoveries.from_record(record["recoveries"], now)
    found.recoveries.coordinator_restarts += 1
    if found.phase in (Phase.HALTING, Phase.FORMING):
        found.change = Change(now)
    found.form_began = now
    return found


def write(path: Path, record: dict[str, Any]) -> None:
    """Replace the journal: whole or not at all, also after a power cut."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w") as file:
        file.write(json.dumps(record, separators=(",", ":")))  # dump() has no fast encoder
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
