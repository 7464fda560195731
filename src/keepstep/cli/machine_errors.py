"""Errors of the machine (a full disk, a folder that may not be written) as one clear message."""

from __future__ import annotations

import errno
import os

_MENDS = {
    errno.ENOSPC: "free some space there, or name another place, and start the same command again",
    errno.EDQUOT: "free some of your quota there, or name another place, and start again",
    errno.EROFS: "it is mounted read-only; name another place",
    errno.EACCES: "you may not do this there; name another place, or ask its owner",
    errno.EPERM: "you may not do this there; name another place, or ask its owner",
    errno.EMFILE: "raise the limit of open files (ulimit -n) and start the same command again",
    errno.ENFILE: "the machine has too many open files; end what is not needed and start again",
    errno.EIO: "the device reports a fault (see the kernel's log); name another place",
}


def told(error: OSError) -> str | None:
    """Return what happened, where, and what mends it; None if it is not the machine's error."""
    mend = _MENDS.get(error.errno or 0)
    if mend is None:
        return None
    where = error.filename if error.filename is not None else "standard output or a file"
    return f"{where}: {os.strerror(error.errno or 0)}; {mend}"
