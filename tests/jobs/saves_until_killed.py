"""Saves a job of three ranks again and again until it is killed, many times over.

python -m tests.jobs.saves_until_killed FOLDER TIMES SEED
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.runtime.test_checkpoints import World


def save_for_ever(root: Path) -> None:
    """Save every step, keep the newest two."""
    world = World(root, 3, steps=1_000_000, every=1, keep=2)
    for step in itertools.count(1):
        world.save(step)


def main(root: Path, times: int, seed: int) -> None:
    """Start a process for each life and end it at a random moment after its first save."""
    moments = random.Random(seed)
    for life in range(times):
        folder = root / str(life)
        pid = os.fork()
        if pid == 0:
            save_for_ever(folder)
        while not any(folder.glob("step-??????")):
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
