"""Opening, renewing and closing a rollback window."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime

from keepstep.checkpoint.choice import Choice, choose, copy_of, same, steps_below
from keepstep.checkpoint.copies import copied, make_copy
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.ledger import Entry, ledger_of, who
from keepstep.checkpoint.sibling import Placement
from keepstep.checkpoint.store import LocalStore, Store
from keepstep.checkpoint.window import (
    FINALIZED,
    OPENED,
    RELEASED,
    Mark,
    Window,
    steps_ever_marked,
    window_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the user says of a window; None keeps what it has."""

    minor: str | None = None
    owner: str | None = None
    until: date | None = None
    accept: tuple[str, ...] = ()  # criteria to add


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What ``protect`` has done."""

    window: Window
    choice: Choice
    copies: dict[str, Placement | None]  # made now; None: there is none
    idle: tuple[str, ...]  # copies of what was protected before
    notes: tuple[str, ...]  # why it protects less than it should


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a criterion."""

    met: bool  # otherwise waived
    why: str


class UnansweredError(CheckpointError):
    """A window cannot be finalized while criteria have no answer."""


def protect(
    root: Store, terms: Terms, *, placement: Placement | None = None, copies: bool = True
) -> Protection:
    """Open a window or renew the one that is open: extend it, and move its marks on.

    Args:
        root: The run.
        terms: What to open with, or what to change.
        placement: How data files get into the copies; None: by what costs no space now.
        copies: Make copies outside of the trainer's reach; local runs only.

    Raises:
        ValueError: The terms are not enough, or contradict the window that is open.
        CheckpointError: There is no run, or no ledger is possible.
    """
    if not ledger_of(root).read():
        steps_below(root)  # raises before there is a ledger beside what is no run
    with ledger_of(root).writing() as pen:
        opened = window_of(pen.entries)
        window = _opened(terms) if opened is None else _renewed(opened, terms)
        choice = choose(root, window.minor, window.marks)
        marks = choice.marks
        if window.marks and window.marks[0].tested and not choice.tested:
            # What was proven stays until something else is.
            there = _names_there(root)
            marks += tuple(
                m for m in window.marks if m.name in there and m.name not in {c.name for c in marks}
            )
        window = replace(window, marks=marks)
        # First: what protect puts beside the run is known to be its own, also after a crash.
        entry = pen.add(OPENED, **window.facts())
        made: dict[str, Placement | None] = {}
        notes: list[str] = []
        if copies and isinstance(root, LocalStore):
            made, notes = _copy(root, marks, placement)
    window = replace(window, marked=entry["when"])
    idle: tuple[str, ...] = ()
    if isinstance(root, LocalStore):
        before = steps_ever_marked(pen.entries).keys() - window.names
        idle = tuple(name for name in copied(root) if name in before)
    return Protection(window=window, choice=choice, copies=made, idle=idle, notes=tuple(notes))


def release(root: Store, because: str) -> Window:
    """Close the window without a verdict on the new version; nothing is removed.

    Raises:
        CheckpointError: No window is open, or there is no run.
    """
    _open_window(root, ledger_of(root).read())  # raises before there is a ledger
    with ledger_of(root).writing() as pen:
        window = _open_window(root, pen.entries)
        pen.add(RELEASED, because=because, **{"for": window.minor, "owner": window.owner})
    return window


def finalize(root: Store, answers: dict[int, Answer]) -> Window:
    """Close the window because the new version is accepted; nothing is removed.

    Args:
        root: The run.
        answers: By the criterion's number, from 1.

    Raises:
        ValueError: An answer to a criterion that does not exist.
        UnansweredError: A criterion has no answer.
        CheckpointError: No window is open.
    """
    _open_window(root, ledger_of(root).read())  # raises before there is a ledger
    with ledger_of(root).writing() as pen:
        window = _open_window(root, pen.entries)
        numbers = range(1, len(window.accept) + 1)
        if strange := sorted(answers.keys() - set(numbers)):
            raise ValueError(f"there is no criterion {strange[0]}: there are {len(window.accept)}")
        if missing := [number for number in numbers if number not in answers]:
            raise UnansweredError(
                f"{root.address}: not finalized, these criteria have no answer:\n"
                + "\n".join(f"  {number}: {window.accept[number - 1]}" for number in missing)
                + f"\nAnswer each: keepstep checkpoint finalize {root.address} "
                f"--met {missing[0]}=EVIDENCE (or --waive {missing[0]}=REASON)"
            )
        told = [
            {"criterion": text, **asdict(answers[number])}
            for number, text in enumerate(window.accept, start=1)
        ]
        pen.add(FINALIZED, answers=told, **{"for": window.minor, "owner": window.owner})
    return window


def _opened(terms: Terms) -> Window:
    if terms.minor is None or terms.owner is None or terms.until is None:
        raise ValueError("no window is open here: to open one, give --for, --owner and --until")
    _check_end(terms.until)
    return Window(
        minor=terms.minor,
        owner=terms.owner,
        until=terms.until,
        accept=terms.accept,
        opened=datetime.now(UTC).isoformat(timespec="seconds"),
        opened_by=who(),
        marked="",
        marks=(),
    )


def _renewed(window: Window, terms: Terms) -> Window:
    if terms.minor not in (None, window.minor):
        raise ValueError(
            f"a window for PyTorch {window.minor} is open here (owner {window.owner}): finalize or "
            "release it first"
        )
    if terms.until is not None:
        _check_end(terms.until)
    return replace(
        window,
        owner=terms.owner or window.owner,
        until=terms.until or window.until,
        accept=window.accept + tuple(c for c in terms.accept if c not in window.accept),
    )


def _check_end(until: date) -> None:
    today = datetime.now(UTC).date()
    if until < today:
        raise ValueError(f"--until {until}: that day has passed (today is {today}, UTC)")


def _open_window(root: Store, entries: list[Entry]) -> Window:
    window = window_of(entries)
    if window is None:
        steps_below(root)
        raise CheckpointError(
            f"{root.address}: no rollback window is open: keepstep checkpoint protect "
            f"{root.address} --for MINOR --owner NAME --until DATE opens one"
        )
    return window


def _names_there(root: Store) -> set[str]:
    names = set(root.folders())
    return names | set(copied(root)) if isinstance(root, LocalStore) else names


def _copy(
    root: LocalStore, marks: tuple[Mark, ...], placement: Placement | None
) -> tuple[dict[str, Placement | None], list[str]]:
    """Make the copies that are missing, and say which are not possible."""
    made: dict[str, Placement | None] = {}
    notes = []
    for mark in marks:
        copy = copy_of(root, mark.name)
        if copy is not None:
            if same(copy, mark):
                continue
            if mark.tested is None:
                notes.append(
                    f"{copy.address} is not what {mark.name} is now: one of them was written "
                    "again. The copy stays until the new one is test-loaded"
                )
                continue
        try:
            made[mark.name] = make_copy(root, mark.name, placement)
        except OSError as error:
            made[mark.name] = None
            notes.append(f"{mark.name}: no copy outside of the trainer's reach: {error}")
            continue
        if made[mark.name] is None:
            notes.append(
                f"{mark.name}: neither reflink nor hard link is possible here, so the trainer may "
                f"still remove it. A copy of its bytes: --placement copy"
            )
    return made, notes
