"""Where a checkpoint lies: a local folder, or any address that fsspec understands."""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from keepstep.checkpoint.errors import CheckpointError, NoSuchFolderError, NotACheckpointError

UNFINISHED = ".unfinished"  # ends the name of a file that is being written

_BLOCK = 1 << 20


class File(NamedTuple):
    """A file of a checkpoint. ``modified`` is in seconds, None where the store does not say."""

    size: int
    modified: float | None


Stamp = str  # equal only for the same version of a file
ABSENT: Stamp = ""  # of a file that does not exist


class Store(Protocol):
    """The files below one address, named by their paths relative to it."""

    address: str

    def files(self) -> dict[str, File]:
        """Return every file below the address."""

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the address."""

    def below(self, name: str) -> Store:
        """Return the store of a folder below this one."""

    def size(self, name: str) -> int:
        """Return a file's size in bytes; FileNotFoundError where there is none."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end`` or the end of the file."""

    def heads(self, names: list[str], count: int) -> list[bytes | None]:
        """Return the first ``count`` bytes of files, asked for at once; None for one that failed.

        Args:
            names: Files, which may lie in folders below this one.
            count: How many bytes; all of a file that is shorter.
        """

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Give the whole file as a real file of this machine."""

    def stamp(self, name: str) -> Stamp:
        """Return what changes whenever a file is written."""

    def put(
        self, name: str, data: bytes, *, only_if: Stamp | None = None, like: str | None = None
    ) -> None:
        """Write a file as a whole or not at all, also when this process is killed.

        Args:
            name: The file; one that exists is replaced.
            data: Its new content.
            only_if: Refuse when the file is no longer the one with this stamp (``ABSENT``: when
                there is one by now).
            like: A file whose time and mode the new one takes over, where the store keeps these.

        Raises:
            CheckpointError: The file is another one by now.
        """

    def remove(self, name: str) -> None:
        """Remove a file; it is no error when it is gone."""


def open_store(address: str) -> Store:
    """Return the store at a path or an fsspec address (``s3://...``).

    Raises:
        CheckpointError: fsspec or the package for this kind of address is not installed.
    """
    if "://" not in address:
        return LocalStore(Path(address))
    if address.startswith("file://"):
        return LocalStore(Path(unquote(urlsplit(address).path)))
    try:
        import fsspec  # costs 50 ms: only for those who need it
    except ImportError:
        raise CheckpointError(
            f"{address}: reading this needs fsspec: pip install 'keepstep[fsspec]'"
        ) from None
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise CheckpointError(f"{address}: {error}") from None
    return RemoteStore(address, system, path)


def _no_such_folder(path: Path) -> NoSuchFolderError:
    there = next((str(each) for each in path.absolute().parents if each.is_dir()), "/")
    what = "it is a file" if path.exists() else f"there is no such folder (look with: ls {there})"
    return NoSuchFolderError(f"{path}: {what}; a folder is wanted")


def _regular(path: Path) -> Path:
    """Return ``path``; raise OSError for a pipe or a device, which would be waited for."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file but a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))
    return path


class LocalStore:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)

    def files(self) -> dict[str, File]:
        """Return every file below the folder."""
        if not self.path.is_dir():
            raise _no_such_folder(self.path)
        found: dict[str, File] = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                stat = path.stat(follow_symlinks=path.exists())
                relative = path.relative_to(self.path).as_posix()
                found[relative] = File(stat.st_size, stat.st_mtime_ns / 1e9)
        return found

    def folders(self) -> list[str]:
        """Return the names of the folders directly below this one."""
        if not self.path.is_dir():
            raise _no_such_folder(self.path)
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def below(self, name: str) -> LocalStore:
        """Return the store of a folder below this one."""
        return LocalStore(self.path / name)

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        return (self.path / name).stat().st_size

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end``."""
        with _regular(self.path / name).open("rb", buffering=0) as file:
            file.seek(start)
            return _read_all(file, end - start)

    def heads(self, names: list[str], count: int) -> list[bytes | None]:
        """Return the first ``count`` bytes of files, None for one that cannot be read."""
        found: list[bytes | None] = []
        for name in names:
            try:
                found.append(self.read(name, 0, count))
            except OSError:
                found.append(None)
        return found

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Give the file itself."""
        with _regular(self.path / name).open("rb") as file:
            yield file

    def stamp(self, name: str) -> Stamp:
        """Return inode, size and time of a file."""
        stat = (self.path / name).stat()
        return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"

    def put(
        self, name: str, data: bytes, *, only_if: Stamp | None = None, like: str | None = None
    ) -> None:
        """Write a file beside the old one, bring it to the disk, and let it take its place."""
        path = self.path / name
        temporary = path.with_name(path.name + UNFINISHED)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if like is not None:
                shutil.copystat(self.path / like, temporary)
            if only_if is not None and self.stamp(name) != only_if:
                raise CheckpointError(f"{path}: it was written by somebody else meanwhile")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self.sync()

    def remove(self, name: str) -> None:
        """Remove a file; it is no error when it is gone."""
        (self.path / name).unlink(missing_ok=True)
        self.sync()

    def sync(self) -> None:
        """Bring the names in the folder to the disk: without this a crash may undo a rename."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:  # some network file systems cannot do that for folders
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(folder)


class RemoteStore:
    """A prefix of an object store, or whatever else fsspec reaches."""

    def __init__(self, address: str, system: Any, path: str) -> None:
        self.address = address.rstrip("/")
        self.system = system
        self.path = path.rstrip("/")

    def files(self) -> dict[str, File]:
        """Return every object below the prefix."""
        self.system.invalidate_cache()
        found = self.system.find(self.path, detail=True)
        if not found:
            raise NotACheckpointError(f"{self.address}: there is nothing at this address")
        prefix = len(self.system._strip_protocol(self.path).rstrip("/")) + 1
        return {
            name[prefix:]: File(int(entry["size"] or 0), _modified(entry))
            for name, entry in found.items()
        }

    def folders(self) -> list[str]:
        """Return the names of the prefixes directly below this one."""
        self.system.invalidate_cache()
        try:
            entries = self.system.ls(self.path, detail=True)
        except FileNotFoundError:
            raise NotACheckpointError(f"{self.address}: there is nothing at this address") from None
        return [
            entry["name"].rstrip("/").rpartition("/")[2]
            for entry in entries
            if entry["type"] == "directory"
        ]

    def below(self, name: str) -> RemoteStore:
        """Return the store of a prefix below this one."""
        return RemoteStore(f"{self.address}/{name}", self.system, self.at(name))

    def at(self, name: str) -> str:
        """Return the full name of an object; a rooted name stays as it is, as in PyTorch."""
        return posixpath.join(self.path, name)

    def size(self, name: str) -> int:
        """Return an object's size in bytes."""
        return int(self.system.info(self.at(name))["size"])

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end``."""
        # By keyword: the second positional argument of s3fs is a version, not an offset.
        content = self.system.cat_file(self.at(name), start=start, end=end)
        assert isinstance(content, bytes), "cat_file of one path returns bytes"
        return content

    def heads(self, names: list[str], count: int) -> list[bytes | None]:
        """Return the first ``count`` bytes of objects; many requests are on their way at once."""
        paths = [self.at(name) for name in names]
        ends = [count] * len(paths)
        found = self.system.cat_ranges(paths, [0] * len(paths), ends, on_error="return")
        return [content if isinstance(content, bytes) else None for content in found]

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Give a copy of the object on this machine."""
        with (
            tempfile.TemporaryFile() as copy,
            self.system.open(self.at(name), "rb", block_size=8 * _BLOCK) as source,
        ):
            shutil.copyfileobj(source, copy, _BLOCK)
            copy.flush()
            copy.seek(0)
            yield copy

    def stamp(self, name: str) -> Stamp:
        """Return the store's own mark of a version, else size and time."""
        self.system.invalidate_cache()
        entry = self.system.info(self.at(name))
        for key in ("ETag", "etag", "generation", "content_md5"):
            if entry.get(key):
                return str(entry[key])
        return f"{entry['size']}-{_modified(entry)}"

    @property
    def conditional(self) -> bool:
        """Whether the store itself refuses to replace another version than the one expected."""
        protocol = self.system.protocol
        return "s3" in ((protocol,) if isinstance(protocol, str) else protocol)

    def put(
        self, name: str, data: bytes, *, only_if: Stamp | None = None, like: str | None = None
    ) -> None:
        """Write an object with one request; stores show the old or the new one, never a part."""
        conditions: dict[str, Any] = {}
        if self.conditional:
            conditions["chunksize"] = max(len(data), 50 * _BLOCK)  # one PUT: no upload in parts
            if only_if == ABSENT:
                conditions["IfNoneMatch"] = "*"
            elif only_if is not None:
                conditions["IfMatch"] = only_if
        elif only_if is not None and self.stamp(name) != only_if:
            raise CheckpointError(f"{self.at(name)}: it was written by somebody else meanwhile")
        try:
            self.system.pipe_file(self.at(name), data, **conditions)
        except OSError as error:
            if _refused(error):
                raise CheckpointError(
                    f"{self.at(name)}: it was written by somebody else meanwhile"
                ) from None
            raise

    def remove(self, name: str) -> None:
        """Remove an object; it is no error when it is gone."""
        with suppress(FileNotFoundError):
            self.system.rm_file(self.at(name))


def _refused(error: OSError) -> bool:
    """Tell whether S3 refused because the object is no longer the one expected.

    s3fs raises an OSError with S3's sentence; the code is in the botocore error that caused it.
    """
    answer = getattr(error.__cause__, "response", {})
    code = answer.get("Error", {}).get("Code")
    return code in ("PreconditionFailed", "ConditionalRequestConflict")


def _read_all(file: Any, count: int) -> bytes:
    """Read ``count`` bytes, or what there is: one read may return less than there is."""
    parts = []
    while count > 0 and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _modified(entry: dict[str, Any]) -> float | None:
    """Return when an object was last written; each file system names it in its own way."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = entry.get(key)
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return None
