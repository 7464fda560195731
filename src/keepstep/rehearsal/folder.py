"""The folder of a rehearsal: every result is on disk, whole, before the next thing is begun.

rehearsal.json        what is rehearsed: digest of the plan, when it began
plan.toml             the plan as it was read
runs/CELL/PAIR.json   one run; PAIR/ beside it holds what its ranks printed and recorded
drills/NAME.json      one drill; NAME/ beside it holds its evidence
receipts/             signed
report.html, report.json
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from keepstep.canary.facts import Facts
from keepstep.canary.record import RunRecord
from keepstep.drills.record import DrillRecord
from keepstep.whole import write_whole

Kept = TypeVar("Kept", bound=Facts)

HEAD, PLAN, LOCK = "rehearsal.json", "plan.toml", "lock"
DAMAGED = ".damaged"  # ends the name of what was put out of the way


class OtherRehearsalError(ValueError):
    """The folder holds something else, or somebody is at work in it."""


class DamagedHeadError(OtherRehearsalError):
    """The file that says what the folder is about cannot be read."""


class Head(Facts):
    """What a folder is about."""

    format: Literal[1] = 1
    plan_sha256: str
    started: str  # ISO 8601, UTC
    keepstep: str  # version
    resumed: tuple[str, ...] = ()  # when it was taken up again
    notes: tuple[str, ...] = ()  # what a reader of the report must know of the folder


class Folder:
    """What was found so far, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def receipts(self) -> Path:
        """Where the signed records lie."""
        return self.path / "receipts"

    def run_folder(self, cell: str, pair: int) -> Path:
        """Return where the ranks of a run write."""
        return self.path / "runs" / file_name(cell) / str(pair)

    def drill_folder(self, name: str) -> Path:
        """Return where a drill works."""
        return self.path / "drills" / file_name(name)

    def run_file(self, cell: str, pair: int) -> Path:
        """Return where the record of a run lies."""
        return self.run_folder(cell, pair).with_suffix(".json")

    def drill_file(self, name: str) -> Path:
        """Return where the record of a drill lies."""
        folder = self.drill_folder(name)
        return folder.with_name(f"{folder.name}.json")

    def read_head(self) -> Head | None:
        """Return what the folder is about; None for a new one.

        Raises:
            DamagedHeadError: It is there and cannot be read.
        """
        path = self.path / HEAD
        try:
            return Head.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, IsADirectoryError):
            raise DamagedHeadError(
                f"{path}: it is damaged, so nobody knows which plan the runs beside it are of; "
                "wanted what keepstep rehearse wrote: put the whole file back, or use a new "
                "folder: --out DIR"
            ) from None

    @property
    def is_begun(self) -> bool:
        """Whether a rehearsal was begun in it."""
        return (self.path / HEAD).exists()

    def has_plan(self, sha256: str) -> bool:
        """Return whether the plan that was kept here is the one with this digest."""
        try:
            return digest((self.path / PLAN).read_text(encoding="utf-8")) == sha256
        except (OSError, UnicodeDecodeError):
            return False

    def write_head(self, head: Head, plan: str) -> None:
        """Say what the folder is about; a damaged head is kept beside the new one."""
        try:
            self.read_head()
        except DamagedHeadError:
            damaged = self.path / HEAD
            if damaged.is_dir():
                _put_away(damaged)
            else:  # it stays until the new one takes its place: without a head nobody goes on here
                damaged.with_name(f"{HEAD}{DAMAGED}").write_bytes(damaged.read_bytes())
        write_whole(self.path / PLAN, [plan])
        self._write(self.path / HEAD, head)

    def read_run(self, cell: str, pair: int) -> RunRecord | None:
        """Return a run that is complete; None when it must be done (again)."""
        path = self.run_file(cell, pair)
        found = self._read(path, RunRecord)
        if found is not None and (found.cell, found.pair) != (cell, pair):  # somebody copied it
            _put_away(path)
            return None
        return found

    def write_run(self, record: RunRecord) -> None:
        """Keep a run."""
        self._write(self.run_file(record.cell, record.pair), record)

    def read_drill(self, name: str) -> DrillRecord | None:
        """Return a drill that is complete."""
        return self._read(self.drill_file(name), DrillRecord)

    def write_drill(self, record: DrillRecord) -> None:
        """Keep a drill."""
        self._write(self.drill_file(record.name), record)

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the report."""
        write_whole(self.path / name, [text])
        return self.path / name

    def write_receipt(self, name: str, envelope: bytes) -> Path:
        """Keep a receipt."""
        self.receipts.mkdir(exist_ok=True)
        path = self.receipts / f"{file_name(name)}.json"
        write_whole(path, [envelope.decode("ascii")])
        return path

    def _write(self, path: Path, record: Facts) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [record.model_dump_json(indent=1)])

    def _read(self, path: Path, kind: type[Kept]) -> Kept | None:
        """Return a record; a damaged one was never made, it is only put out of the way."""
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, IsADirectoryError):
            _put_away(path)
            return None


def look(path: Path, kind: type[Kept]) -> Kept | None:
    """Return a record, None where there is none that can be read; nothing is changed."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _put_away(path: Path) -> None:
    path.replace(path.with_name(f"{path.name}{DAMAGED}"))


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[Folder]:
    """Open a rehearsal's folder for this process alone.

    Raises:
        OtherRehearsalError: Another process has it, or it holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OtherRehearsalError(f"{folder}: it is or lies in a file; wanted a folder") from None
    names = {entry.name for entry in folder.iterdir()} - {LOCK}
    if names and HEAD not in names:
        raise OtherRehearsalError(
            f"{folder}: it holds {sorted(names)[0]} and no {HEAD}; wanted a new or empty folder, "
            "or one of an earlier rehearsal: --out DIR"
        )
    with open(folder / LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OtherRehearsalError(
                f"{folder}: another rehearsal is at work in it; wait for it, or use --out DIR"
            ) from None
        yield Folder(folder.absolute())  # ranks and drills work in other folders


def file_name(name: str) -> str:
    """Return a file's name for the name of a cell or a drill."""
    return name.replace("/", "__").replace(" ", "-")


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
