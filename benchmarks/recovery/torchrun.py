"""torchrun: all ranks are restarted and load the latest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.recovery.job import TRAINING, Job, System
from benchmarks.recovery.settings import CHECKPOINT_EVERY, GLOO_TIMEOUT, WORLD_SIZE

MAX_RESTARTS = 3

# torch 2.15.0 keeps one store for all restarts, and gloo finds in it the addresses of processes
# that are gone: without this variable the ranks do not find each other again. Reported for NCCL as
# pytorch/pytorch#135712.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start(folder: Path) -> Job:
    """Start a run."""
    job = Job(folder)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [f"--nproc-per-node={WORLD_SIZE}", f"--max-restarts={MAX_RESTARTS}"]
    job.launch([*torchrun, *options, TRAINING / "train_torchrun.py"], "output", FRESH_STORE)
    return job


SYSTEM = System(
    name="torchrun",
    processes=WORLD_SIZE,
    settings={
        "checkpoint": f"every {CHECKPOINT_EVERY} steps",
        "max restarts": str(MAX_RESTARTS),
        "gloo timeout": f"{GLOO_TIMEOUT:g} s (default: 30 min)",
        "store": "fresh at each restart (default: shared, and then gloo fails to restart)",
        "monitor interval": "default: 0.1 s",
        "shutdown timeout": "default: 30 s",
    },
    start=start,
)
