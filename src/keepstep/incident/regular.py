"""Reading a file that somebody else wrote: no link is followed, no pipe waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

NOT_THERE, NOT_READABLE = "it is not there any more", "not readable"


class NotReadError(Exception):
    """Why a file was not read, in words."""


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises:
        NotReadError: it is a link, no regular file, too large, or not readable.
    """
    try:
        # Without blocking: a pipe would otherwise keep us until somebody writes to it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotReadError("a link, which is not followed") from None
        if error.errno == errno.ENOENT:
            raise NotReadError(NOT_THERE) from None
        raise NotReadError(f"{NOT_READABLE}: {error.strerror}") from None
    except ValueError as error:  # a name with a zero byte or half a surrogate pair
        raise NotReadError(f"no name of a file: {error}") from None
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise NotReadError("no regular file")
        if status.st_size > most:
            raise NotReadError(f"{status.st_size} bytes, at most {most} are read")
        with open(number, "rb", closefd=False) as file:
            return file.read(most)
    except OSError as error:
        raise NotReadError(f"{NOT_READABLE}: {error.strerror}") from None
    finally:
        os.close(number)
