"""What is known of each rank: why its dump is missing, when its host recorded the last event."""

from __future__ import annotations

from collections.abc import Mapping

from keepstep.diagnosis.evidence import Evidence
from keepstep.incident.gather import Gathered
from keepstep.incident.manifest import DUMP
from keepstep.recorder.model import Dump


def missing_reasons(gathered: Gathered) -> dict[int, str]:
    """Return, by rank, why it left no dump."""
    seen = gathered.evidence.observations
    reasons = {rank: each.missing_dump for rank, each in seen.items() if each.missing_dump}
    for arrival in gathered.arrivals:
        if arrival.kind == DUMP and not arrival.file:
            reasons.setdefault(arrival.rank, arrival.reason)
    return reasons


def last_events(evidence: Evidence, dumps: Mapping[int, Dump]) -> dict[int, int]:
    """Return, by rank, when the last event of its host was recorded (nanoseconds).

    Clocks of hosts differ: a time means something only beside this one. A rank whose host nobody
    named is a host of its own.
    """
    hosts = {each.rank: each.host for each in evidence.dumps if each.rank is not None}
    last: dict[int, int] = {}
    by_host: dict[str, int] = {}
    for rank, dump in dumps.items():
        times = [
            time
            for entry in dump.entries
            for time in (entry.created_ns, entry.started_ns, entry.completed_ns)
            if time is not None
        ]
        if times:
            last[rank] = max(times)
            if host := hosts.get(rank):
                by_host[host] = max(last[rank], by_host.get(host, 0))
    return {rank: by_host.get(hosts.get(rank) or "", time) for rank, time in last.items()}
