"""The ledger of a run: what was decided about its rollback window, and what ``prune`` removed.

One JSON object a line, in ``run.keepstep.jsonl`` beside the folder ``run``, never in it: trainers
list and clean up what lies in there. Lines are only ever added. A line counts once it is whole and
on the disk; what a crash leaves of one is cut off by the next writer.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.store import ABSENT, LocalStore, RemoteStore, Stamp, Store

SUFFIX = ".keepstep.jsonl"

_FORMAT = 1

Entry = dict[str, Any]


class LedgerError(CheckpointError):
    """The ledger cannot be read, so nothing may be removed by what it does not say."""


class Pen(Protocol):
    """The ledger while nobody else can add to it."""

    entries: list[Entry]  # what it says so far, oldest first

    def add(self, what: str, **facts: Any) -> Entry:
        """Add a line, with who and when; it is on the disk on return."""


class Ledger(Protocol):
    """The ledger of one run."""

    address: str

    def read(self) -> list[Entry]:
        """Return what it says, oldest first; nothing where there is no ledger.

        Raises:
            LedgerError: It is damaged, or of a newer keepstep.
        """

    def writing(self) -> AbstractContextManager[Pen]:
        """Keep others from adding to it, read it, and add."""


def ledger_of(root: Store) -> Ledger:
    """Return the ledger beside the folder or address of a run; it need not exist yet.

    Raises:
        CheckpointError: Nothing can lie beside ``root``, or its store cannot keep a ledger.
    """
    if isinstance(root, LocalStore):
        folder = root.path.resolve()
        if folder.parent == folder:
            raise CheckpointError(f"{root.address}: the ledger lies beside a run, not beside this")
        return _LocalLedger(folder.with_name(folder.name + SUFFIX))
    assert isinstance(root, RemoteStore), "there are no other stores"
    return _RemoteLedger(root)


class _LocalLedger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)

    def read(self) -> list[Entry]:
        try:
            return _parse(self.path.read_bytes(), self.address)[0]
        except FileNotFoundError:
            return []

    @contextmanager
    def writing(self) -> Iterator[Pen]:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                raise OSError(
                    error.errno, "its file system has no locks, which a ledger needs", self.address
                ) from None
            yield _LocalPen(handle, self.path)
        finally:
            os.close(handle)


class _LocalPen:
    def __init__(self, handle: int, path: Path) -> None:
        with open(handle, "rb", closefd=False) as file:
            self.entries, whole = _parse(file.read(), str(path))
        self._handle = handle
        self._folder = path.parent
        # Nobody was ever told that a line without its end is in the ledger.
        os.ftruncate(handle, whole)

    def add(self, what: str, **facts: Any) -> Entry:
        entry, line = _line(what, facts)
        first = os.fstat(self._handle).st_size == 0
        while line:  # a full disk takes a part, which the next writer cuts off
            line = line[os.write(self._handle, line) :]
        os.fsync(self._handle)
        if first:
            LocalStore(self._folder).sync()
        self.entries.append(entry)
        return entry


class _RemoteLedger:
    def __init__(self, root: RemoteStore) -> None:
        above, slash, name = root.path.rpartition("/")
        if not slash:
            raise CheckpointError(
                f"{root.address}: the ledger lies beside a run; wanted: an address below a bucket"
            )
        self._root = root
        self._store = RemoteStore(root.address.rpartition("/")[0], root.system, above)
        self._name = name + SUFFIX
        self.address = root.address + SUFFIX

    def read(self) -> list[Entry]:
        return self._read()[0]

    def _read(self) -> tuple[list[Entry], bytes, Stamp]:
        try:
            stamp = self._store.stamp(self._name)  # first: a later change is noticed by the write
            data = self._store.read(self._name, 0, self._store.size(self._name))
        except FileNotFoundError:
            return [], b"", ABSENT
        return _parse(data, self.address)[0], data, stamp

    @contextmanager
    def writing(self) -> Iterator[Pen]:
        if not self._root.conditional:
            raise CheckpointError(
                f"{self.address}: a ledger needs a store that refuses to replace what somebody "
                "else wrote meanwhile; behind fsspec only S3 does"
            )
        yield _RemotePen(self._store, self._name, *self._read())


class _RemotePen:
    """Adds one line: replaces the object, unless somebody else has done so meanwhile."""

    def __init__(
        self, store: RemoteStore, name: str, entries: list[Entry], data: bytes, stamp: Stamp
    ) -> None:
        self.entries = entries
        self._store, self._name, self._data, self._stamp = store, name, data, stamp
        self._used = False

    def add(self, what: str, **facts: Any) -> Entry:
        entry, line = _line(what, facts)
        assert not self._used, "what others wrote after the first line would be overwritten"
        self._used = True
        self._store.put(self._name, self._data + line, only_if=self._stamp)
        self.entries.append(entry)
        return entry


def _line(what: str, facts: Entry) -> tuple[Entry, bytes]:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"format": _FORMAT, "what": what, "when": when, "by": who(), **facts}
    return entry, json.dumps(entry).encode() + b"\n"


def who() -> str:
    """Return who runs this: user and host."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _parse(data: bytes, address: str) -> tuple[list[Entry], int]:
    """Return the entries, and the number of bytes that are whole lines."""
    whole = data.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            entry = json.loads(line)
            written = entry["format"]
            entry["what"], entry["when"], entry["by"]
        except (ValueError, KeyError, TypeError):
            _damaged(address, number)
        if written != _FORMAT:
            raise LedgerError(
                f"{address}: line {number} is of format {written}, and this keepstep knows "
                f"{_FORMAT}: use the newer keepstep that wrote it"
            )
        entries.append(entry)
    return entries, whole


def _damaged(address: str, number: int) -> NoReturn:
    raise LedgerError(
        f"{address}: line {number} is damaged, and may have said what must not be removed. Look at "
        f"it (sed -n {number}p) and mend it, or delete that line"
    )
