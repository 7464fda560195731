"""keepstep, with a spare and without any other option."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.recovery.job import TRAINING, Job, System
from benchmarks.recovery.settings import WORLD_SIZE

SPARES = 1


def start(folder: Path) -> Job:
    """Start a run."""
    job = Job(folder)
    options = ["--workers", str(WORLD_SIZE), "--spares", str(SPARES)]
    events = ["--events", str(folder / "events.jsonl")]
    keepstep = Path(sys.executable).parent / "keepstep"
    job.launch([keepstep, "run", *options, *events, TRAINING / "train_keepstep.py"], "output")
    return job


SYSTEM = System(
    name="keepstep",
    processes=WORLD_SIZE + SPARES,
    settings={"spares": str(SPARES), "patience": "default: 5 median steps, at least 1 s"},
    start=start,
)
