"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, parts: Iterable[str]) -> None:
    """Write text to ``path``: to a temporary name beside it, synchronised, then renamed.

    Characters that UTF-8 cannot hold (undecodable file names) become escapes. A link stays one:
    what it leads to is written. A device or a pipe is never replaced, it gets the text as it comes.

    Raises:
        OSError: ``path`` cannot be written; what was there before is untouched.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as device:
            device.writelines(parts)
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
