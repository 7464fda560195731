"""Makes incident folders and trees of dumps from recorded jobs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.incident.manifest import DUMP, NAME, STACKS, Artifact, Manifest, RankFacts, describe

DATA = Path(__file__).resolve().parents[1] / "data" / "recorder"
SKIP = DATA / "h200-4rank-nccl2-skip"  # rank 2 never came to all_reduce 6, and left no dump
HEALTHY = DATA / "h200-4rank-nccl2-healthy"
WAITS = """main thread 0x00007f86e63bbb80
Thread 0x00007f862cb256c0 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 294 in accept

Thread 0x00007f86e63bbb80 (most recent call first):
  File "/srv/train.py", line 31 in step
  File "/srv/train.py", line 9 in main
"""


def facts(rank: int, host: str = "host-a", **changes: Any) -> RankFacts:
    """Return a living member of the generation."""
    known = {"life": "alive", "step": 6, "pid": 4000 + rank, **changes}
    return RankFacts(rank=rank, worker=rank, host=host, agent=host, **known)


def manifest(members: tuple[RankFacts, ...], host: str = "host-a") -> Manifest:
    """Return one host's part of an incident."""
    return Manifest(
        incident="job-generation-0001-stop-rank-2",
        agent=host,
        host=host,
        written=1795980037.5,
        generation=1,
        step=6,
        backend="nccl",
        faults=({"rank": 2, "worker": 2, "fault": "stop", "evidence": "state T"},),
        members=members,
        outcome="generation 2 at step 6",
    )


def incident(
    folder: Path, ranks: tuple[int, ...] = (0, 1, 2, 3), host: str = "host-a", world: int = 4
) -> Path:
    """Write what ``host``, which runs ``ranks``, knows of the job of ``SKIP``; return its folder.

    Rank 2 is stopped and left nothing.
    """
    part = folder / host
    part.mkdir(parents=True)
    members = []
    for rank in range(world):
        if rank not in ranks:
            members.append(facts(rank, "another host", life="alive"))
        elif rank == 2:
            gone = (Artifact(kind=DUMP, reason="stopped"), Artifact(kind=STACKS, reason="stopped"))
            stopped = facts(2, host, life="stopped", why="stopped (state T)", artifacts=gone)
            members.append(stopped)
        else:
            dump, stacks = f"recorder_rank_{rank}", f"stacks_rank_{rank}.txt"
            shutil.copy(SKIP / f"comm_lib_trace_rank_{rank}", part / dump)
            (part / stacks).write_text(WAITS)
            there = (
                describe(part / dump, DUMP, name=dump, how="side thread"),
                describe(part / stacks, STACKS, name=stacks, how="side thread"),
            )
            members.append(facts(rank, host, artifacts=there))
    (part / NAME).write_text(manifest(tuple(members), host).to_json())
    return part


def edit(part: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a host's folder."""
    body = json.loads((part / NAME).read_text())
    change(body)
    (part / NAME).write_text(json.dumps(body))
