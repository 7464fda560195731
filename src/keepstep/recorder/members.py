"""The members of an archive, read in place: nothing is ever written to disk."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from keepstep.recorder import limits
from keepstep.recorder.kinds import Severity
from keepstep.recorder.plain import RefusedError, shown, too_large

Member = tuple[str, bytes | RefusedError]


def members(path: str, skip: int) -> Iterator[Member]:
    """Yield name and content of each regular member after the first ``skip`` ones.

    A member that cannot be read yields the reason instead.

    Raises:
        RefusedError: the archive as a whole cannot be read further.
    """
    try:
        yield from (_zip if path.lower().endswith(".zip") else _tar)(path, skip)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RefusedError(
            "truncated", f"the archive ends or breaks early ({_why(error)})"
        ) from None
    except MemoryError:
        raise RefusedError("too-large", "the archive asks for more memory than allowed") from None
    except gzip.BadGzipFile as error:
        raise RefusedError("malformed", f"the archive is not gzip ({_why(error)})") from None
    except OSError as error:
        raise RefusedError("unreadable", f"the archive cannot be read ({_why(error)})") from None
    except (ValueError, RuntimeError, NotImplementedError, LookupError, RecursionError) as error:
        raise RefusedError("malformed", f"the archive cannot be decoded ({_why(error)})") from None


def _why(error: BaseException) -> str:
    return shown(f"{type(error).__name__}: {error}")


class _Budget:
    """Counts what an archive unpacks to."""

    def __init__(self) -> None:
        self.members = 0
        self.bytes = 0

    def take(self, size: int) -> None:
        self.members += 1
        self.bytes += size
        if self.members > limits.ARCHIVE_MEMBERS or self.bytes > limits.ARCHIVE_BYTES:
            raise RefusedError(
                "too-large",
                f"the archive unpacks to more than {limits.ARCHIVE_MEMBERS} members or"
                f" {limits.ARCHIVE_BYTES >> 30} GiB; the rest is not read",
            )


def _tar(path: str, skip: int) -> Iterator[Member]:
    budget = _Budget()
    # Not the stream mode of tarfile ("r|gz"): it passes over a member twenty times more slowly.
    opener = open if path.lower().endswith(".tar") else gzip.open
    with opener(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            budget.take(max(member.size, 0))
            if member.isdir() or budget.members <= skip:
                if budget.members > skip:
                    yield member.name, _NOTHING
                continue
            if not member.isreg():
                yield member.name, _not_a_file()
                continue
            content = archive.extractfile(member)
            assert content is not None  # it is a regular member
            yield member.name, _content(content, member.size)


def _zip(path: str, skip: int) -> Iterator[Member]:
    budget = _Budget()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            budget.take(member.file_size)
            if budget.members <= skip:
                continue
            if member.is_dir():
                yield member.filename, _NOTHING
            elif member.flag_bits & 1:
                yield member.filename, RefusedError("unreadable", "the member is encrypted")
            else:
                try:
                    with archive.open(member) as file:
                        yield member.filename, _content(file, member.file_size)
                except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
                    yield member.filename, RefusedError("malformed", _why(error))


_NOTHING = RefusedError("folder", "", Severity.NOTE)  # counted, never reported


def _not_a_file() -> RefusedError:
    return RefusedError("not-a-file", "a link or a device; it is not followed", Severity.NOTE)


def _content(file: IO[bytes], size: int) -> bytes | RefusedError:
    if size > limits.FILE_BYTES:
        return too_large(size)
    content = file.read(limits.FILE_BYTES + 1)
    return too_large(len(content)) if len(content) > limits.FILE_BYTES else content
