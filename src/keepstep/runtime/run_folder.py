"""The folder of one run, in memory where there is some, and what killed runs have left there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from keepstep.runtime import procfs

_NAME = re.compile(r"keepstep-(?P<pid>\d+)-(?P<start>\d+)-\w+\Z", re.ASCII)


def place() -> Path:
    """Return where the folders of runs lie."""
    return Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())


class RunFolder:
    """A folder that belongs to this process, and to nobody once the process is gone.

    Its name says whose it is. A lock says it too, where the name cannot: other containers may see
    the folder and not the process.
    """

    def __init__(self, base: Path) -> None:
        """Make it in ``base``.

        Raises:
            OSError: it could not be made.
        """
        pid = os.getpid()
        prefix = f"keepstep-{pid}-{procfs.start_time(pid)}-"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without: then nobody removes it unasked
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it and what is in it. May be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(base: Path) -> None:
    """Remove the folders of runs that were killed: they fill the memory of the host.

    Only our own ones, whose process is gone and whose lock nobody holds.
    """
    for folder in base.glob("keepstep-*"):
        match = _NAME.match(folder.name)
        if match is None or procfs.start_time(int(match["pid"])) == int(match["start"]):
            continue
        with contextlib.suppress(OSError):
            _remove_if_free(folder)


def _remove_if_free(folder: Path) -> None:
    # Everybody may write there: a link that looks like a folder of ours must lead nowhere.
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
