"""What NCCL's RAS service (JSON, NCCL 2.28.7 and newer) says about ranks. Nothing here raises."""

from __future__ import annotations

import json
from typing import Any

from keepstep.diagnosis.evidence import Life, Observation


def is_ras(data: bytes) -> bool:
    """Return whether ``data`` looks like an answer of RAS."""
    return b'"communicators"' in data and b'"nccl_version"' in data


def parse(data: bytes, world_size: int) -> dict[int, Observation]:
    """Return what is said about ranks of the communicators that span the world.

    RAS counts ranks within each communicator: only where one has ``world_size`` ranks are they
    those of the job.
    """
    try:
        body = json.loads(data)
        whole = [each for each in body["communicators"] if each["size"] == world_size]
        found: dict[int, Observation] = {}
        for communicator in whole:
            name = str(communicator["hash"])
            for entry in communicator.get("ranks", []):
                rank = _rank(entry, world_size)
                numbers = tuple(int(n) for n in entry["collective_counts"].values())
                others = found[rank].collective_counts if rank in found else {}
                counts = {**others, name: numbers}
                found[rank] = Observation(life=Life.ALIVE, collective_counts=counts)
        for communicator in whole:
            for entry in communicator.get("missing_ranks", []):
                found[_rank(entry, world_size)] = _missing(entry)
        return found
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return {}


def _rank(entry: dict[str, Any], world_size: int) -> int:
    rank = entry["rank"]
    if type(rank) is not int or not 0 <= rank < world_size:
        raise ValueError(f"{rank!r} is no rank of {world_size}")
    return rank


def _missing(entry: dict[str, Any]) -> Observation:
    if entry.get("status", {}).get("considered_dead"):
        return Observation(life=Life.DEAD, why="NCCL RAS considers it dead")
    return Observation(life=Life.UNRESPONSIVE, why="it does not answer NCCL RAS")
