"""The rollback window of a run, as its ledger tells it.

Whoever opens a window says: until this day we may go back to that PyTorch. It never closes by
itself: one that is past its end is a debt, shown until its owner finalizes or releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from keepstep.checkpoint.ledger import Entry, LedgerError

OPENED, RELEASED, FINALIZED = "protect", "release", "finalize"  # what lines of the ledger say


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The test-load that a checkpoint passed."""

    torch: str
    python: str  # the interpreter that loaded it
    when: str  # ISO 8601, UTC
    level: str  # bytes or keys, see ``record.Record``


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A checkpoint that must not be removed."""

    name: str
    step: int
    identity: str  # SHA-256 of what makes it itself: metadata, and size and time of every data file
    bytes: int  # of all its files
    tested: Tested | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A rollback window that is open."""

    minor: str  # the PyTorch to go back to
    owner: str
    until: date  # the last day
    accept: tuple[str, ...]  # what must be answered before the new version counts as accepted
    opened: str  # ISO 8601, UTC
    opened_by: str
    marked: str  # when the marks were set
    marks: tuple[Mark, ...]  # newest first

    @property
    def names(self) -> frozenset[str]:
        """The names of the checkpoints that must not be removed."""
        return frozenset(mark.name for mark in self.marks)

    def days_left(self, today: date) -> int:
        """Return the days to its end; below zero when that has passed."""
        return (self.until - today).days

    def facts(self) -> dict[str, Any]:
        """Return what a line of the ledger holds of it."""
        return {
            "for": self.minor,
            "owner": self.owner,
            "until": self.until.isoformat(),
            "accept": list(self.accept),
            "opened": self.opened,
            "opened_by": self.opened_by,
            "marks": [asdict(mark) for mark in self.marks],
        }


def window_of(entries: Sequence[Entry]) -> Window | None:
    """Return the window that is open, None where there is none.

    Raises:
        LedgerError: The line that tells of it is not understood.
    """
    for entry in reversed(entries):
        if entry["what"] in (RELEASED, FINALIZED):
            return None
        if entry["what"] == OPENED:
            return _window(entry)
    return None


def steps_ever_marked(entries: Sequence[Entry]) -> dict[str, int]:
    """Return all checkpoints that were protected at some time: the step by the name."""
    return {
        mark.name: mark.step
        for entry in entries
        if entry["what"] == OPENED
        for mark in _window(entry).marks
    }


def _window(entry: Entry) -> Window:
    try:
        return Window(
            minor=entry["for"],
            owner=entry["owner"],
            until=date.fromisoformat(entry["until"]),
            accept=tuple(entry["accept"]),
            opened=entry["opened"],
            opened_by=entry["opened_by"],
            marked=entry["when"],
            marks=tuple(_mark(mark) for mark in entry["marks"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"the ledger's entry of {entry['when']} is not understood ({error!r}): "
            "it may have said what must not be removed"
        ) from None


def _mark(facts: dict[str, Any]) -> Mark:
    tested = facts["tested"]
    return Mark(**{**facts, "tested": None if tested is None else Tested(**tested)})
