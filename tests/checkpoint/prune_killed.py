"""Prunes a run to one checkpoint, and dies at the given change that it makes to the disk.

A script for tests of crashes: ``python prune_killed.py RUN MOMENT``. Moments are counted from 1.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from keepstep.checkpoint.prune import prune
from keepstep.checkpoint.store import LocalStore

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}

if __name__ == "__main__":
    left = int(sys.argv[2])
    write, sync = os.write, os.fsync

    def count() -> None:
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event in CHANGES:
            count()

    def counted_write(handle: int, data: Any) -> int:
        count()
        return write(handle, data)

    def counted_sync(fd: Any) -> None:
        count()
        sync(fd)

    os.write, os.fsync = counted_write, counted_sync
    sys.addaudithook(watch)
    prune(LocalStore(Path(sys.argv[1])), 1)
