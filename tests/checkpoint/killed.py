"""Prunes a run to one checkpoint or protects it, and dies at the given change to the disk.

A script for tests of crashes: ``python killed.py RUN prune|protect MOMENT``. Moments are counted
from 1.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from keepstep.checkpoint.protect import Terms, protect
from keepstep.checkpoint.prune import prune
from keepstep.checkpoint.store import LocalStore

CHANGES = {
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.truncate",
    "os.utime",
    "shutil.rmtree",
}

if __name__ == "__main__":
    root, command, left = LocalStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
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
    if command == "prune":
        prune(root, 1)
    else:
        protect(root, Terms())
