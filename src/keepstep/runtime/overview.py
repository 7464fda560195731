"""The job as the coordinator knows it, told to agents for the operator's view and the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.membership import Membership

INTERVAL = 1.0  # seconds between two overviews for one agent
WORKERS_PER_INTERVAL = 256  # a larger job is told less often: about 20 KB a second at most


@dataclass(slots=True)
class Overviews:
    """Decides when which agent is told what."""

    _told: dict[str, float] = field(default_factory=dict)
    _common: p.Overview | None = None  # the same for all agents but the first
    _common_since: float = 0.0

    def due(self, job: Membership, agent: str, now: float) -> p.Overview | None:
        """Return the overview that ``agent`` should get now, if any.

        Only the first agent, on whose host the operator watches, is told about every worker.
        """
        leads = agent == next(iter(job.agents), None)
        told = len(job.workers) if leads else len(job.agents)
        interval = INTERVAL * max(1.0, told / WORKERS_PER_INTERVAL)
        if now - self._told.get(agent, -interval) < interval:
            return None
        self._told[agent] = now
        if leads:
            return overview_of(job, besides=agent)
        if self._common is None or now - self._common_since >= INTERVAL / 2:
            self._common, self._common_since = overview_of(job, besides=None), now
        return self._common


def overview_of(job: Membership, besides: str | None) -> p.Overview:
    """Return the state of ``job``; with the workers of all agents but ``besides`` if given."""
    counts = Counter(
        (entry.fault, entry.action) for entry in job.recoveries.entries if entry.resumed is not None
    )
    members = set(job.members)
    ready = [w for w in job.workers.values() if w.ready and not w.gone and w.wid not in members]
    return p.Overview(
        steps=job.steps,
        median_step=job.median_step,
        spares_ready=len(ready),
        recoveries=[[fault, action, count] for (fault, action), count in counts.items()],
        workers=[] if besides is None else _rows(job, besides),
    )


def _rows(job: Membership, besides: str) -> list[list[Any]]:
    rows = []
    for worker in job.workers.values():
        if worker.agent == besides or worker.gone:
            continue
        agent = job.agents.get(worker.agent)
        progress = worker.progress
        rows.append(
            [
                worker.wid,
                agent.host if agent is not None else "",
                worker.pid,
                worker.ready is not None,
                bool(worker.fencing),
                None if progress is None else list(progress),
            ]
        )
    return rows
