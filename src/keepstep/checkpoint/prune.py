"""Removes old checkpoints of a run, and never what a rollback or a resume may need.

What is removed is renamed aside first, which is one step, and deleted then. A crash leaves a whole
checkpoint, or a folder that no reader sees and that the next prune deletes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.choice import choose, steps_below
from keepstep.checkpoint.copies import (
    clear,
    copied,
    copies_folder,
    set_aside,
    set_unfinished_aside,
)
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.ledger import Entry, ledger_of
from keepstep.checkpoint.readers import GLOBAL, HF_INDEX, RANK_LOCAL, TEMPORARY, find_readers
from keepstep.checkpoint.store import File, LocalStore
from keepstep.checkpoint.wholeness import lacks
from keepstep.checkpoint.window import Window, steps_ever_marked, window_of

REMOVED = "prune"  # what the line of the ledger says


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A checkpoint that goes."""

    name: str
    bytes: int  # of all its files


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes, and why the rest stays."""

    remove: tuple[Removal, ...]  # checkpoints of the run, newest first
    copies: tuple[Removal, ...]  # copies that no window needs any more
    stay: dict[str, str]  # the reason by the name of each other step, newest first
    frees: int  # bytes that no name of a file holds on to then; blocks shared by reflink count
    window: Window | None


def plan_prune(root: LocalStore, keep: int | None, entries: list[Entry]) -> Plan:
    """Decide what to remove; changes nothing.

    Args:
        root: The run.
        keep: How many of the newest complete checkpoints stay, at least 1; None: nothing of the run
            itself is removed, only copies beside it that no window needs.
        entries: What the ledger says.

    Raises:
        NotACheckpointError: No folder has a step number.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"--keep {keep}: at least the newest complete checkpoint stays")
    window = window_of(entries)
    protected = _protected(root, window)
    complete, stay = _judged(root)
    if keep is not None and len(complete) > keep:
        complete = _whole_ones(root, keep, complete, stay)
    going = [] if keep is None else _going(root, keep, complete, stay, protected)
    copies = _idle_copies(root, protected, entries, spare=not complete)
    copies_home = copies_folder(root)
    folders = [root.path / name for name in going] + [copies_home / name for name in copies]
    order = [name for _, name in steps_below(root)]
    return Plan(
        remove=tuple(_removal(root.path / name) for name in going),
        copies=tuple(_removal(copies_home / name) for name in copies),
        stay={} if keep is None else {name: stay[name] for name in order if name in stay},
        frees=_freed(folders),
        window=window,
    )


def _going(
    root: LocalStore,
    keep: int,
    complete: list[str],
    stay: dict[str, str],
    protected: dict[str, str],
) -> list[str]:
    """Return what goes of the complete checkpoints; adds to ``stay`` why others do not."""
    linked = _linked_to(root)
    for place, name in enumerate(complete):
        if place == 0:
            stay[name] = "the newest complete checkpoint"
        elif name in protected:
            stay[name] = protected[name]
        elif place < keep:
            stay[name] = f"one of the {keep} newest"
        elif name in linked:
            stay[name] = f"{linked[name]} is a link to it"
    users = [name for name in complete if name in stay]
    while users:
        going = [name for name in complete if name not in stay]
        referred = _referred_to(root, users, going)
        stay.update({name: f"{user} refers to its files" for name, user in referred.items()})
        users = list(referred)
    return [name for name in complete if name not in stay]


def prune(root: LocalStore, keep: int | None) -> Plan:
    """Remove all but the ``keep`` newest complete checkpoints and what must stay besides.

    With None for ``keep``: only copies beside the run that no window needs.

    Raises:
        LedgerError: It is not known what is protected; nothing was removed.
        NotACheckpointError: No folder has a step number.
        OSError: Something could not be removed.
    """
    copies = copies_folder(root)
    steps_below(root)  # raises before there is a ledger beside what is no run
    with ledger_of(root).writing() as pen:
        plan = plan_prune(root, keep, pen.entries)
        set_unfinished_aside(copies)
        if plan.remove or plan.copies:
            # First: nothing goes without a record.
            pen.add(
                REMOVED,
                keep=keep,
                removed=[removal.name for removal in plan.remove],
                copies=[removal.name for removal in plan.copies],
            )
        for folder, removals in ((root.path, plan.remove), (copies, plan.copies)):
            # The oldest first: a crash leaves no gap in the run.
            for removal in reversed(removals):
                with suppress(FileNotFoundError):  # the trainer's own retention was faster
                    set_aside(folder, removal.name)
    clear(root.path)
    clear(copies)
    if copies.is_dir() and not any(copies.iterdir()):
        copies.rmdir()
    return plan


def _protected(root: LocalStore, window: Window | None) -> dict[str, str]:
    """Return what an open window keeps: what is marked, and what would be marked today."""
    if window is None:
        return {}
    today = {mark.name for mark in choose(root, window.minor, window.marks).marks}
    why = f"protected: rollback to PyTorch {window.minor} until {window.until} ({window.owner})"
    return dict.fromkeys(window.names | today, why)


def _judged(root: LocalStore) -> tuple[list[str], dict[str, str]]:
    """Return the complete checkpoints, newest first, and why others are not taken for such."""
    complete: list[str] = []
    others: dict[str, str] = {}
    for place, (_, name) in enumerate(steps_below(root)):
        reason = _doubt(root.below(name), newest=place == 0)
        if reason:
            others[name] = reason
        else:
            complete.append(name)
    return complete, others


def _whole_ones(
    root: LocalStore, keep: int, complete: list[str], stay: dict[str, str]
) -> list[str]:
    """Return ``complete`` without those that nothing could load, up to the ``keep`` that stay.

    Only what stays must be proven to be whole: nothing older goes before ``keep`` of them are.
    """
    whole = 0
    found: list[str] = []
    for name in complete:
        why = lacks(root.below(name)) if whole < keep else ""
        if why:
            stay[name] = why
            continue
        whole += 1
        found.append(name)
    return found


def _doubt(store: LocalStore, *, newest: bool) -> str:
    """Return why a folder may be no complete checkpoint, "" if it is one."""
    if store.path.is_symlink():
        return "a link to another place"
    try:
        files = store.files()
        kind = find_readers(store).kind
    except NotACheckpointError:
        return "not complete: it has no metadata"
    except (CheckpointError, FileNotFoundError) as error:
        return f"not recognised: {error}"
    if TEMPORARY in files or _newer_data(files):
        return "its data is newer than its metadata: being written again, or copied without times"
    if newest and GLOBAL not in files and HF_INDEX not in files:
        return f"the newest, and {kind} files do not tell whether all ranks have written"
    return ""


def _linked_to(root: LocalStore) -> dict[str, str]:
    """Return the folders that a link in the run leads to, such as ``latest``, and the link."""
    home = root.path.resolve()
    found = {}
    with os.scandir(home) as entries:
        for entry in entries:
            if entry.is_symlink():
                target = Path(entry.path).resolve()
                if home in target.parents:
                    found[target.relative_to(home).parts[0]] = entry.name
    return found


def _newer_data(files: dict[str, File]) -> bool:
    metadata = [
        file for name, file in files.items() if name == GLOBAL or RANK_LOCAL.fullmatch(name)
    ]
    data = [file for name, file in files.items() if name.endswith(".distcp")]
    written = max((file.modified or 0.0 for file in metadata), default=0.0)
    return bool(metadata) and any((file.modified or 0.0) > written for file in data)


def _referred_to(root: LocalStore, users: list[str], going: Iterable[str]) -> dict[str, str]:
    """Return which of ``going`` hold files that the metadata of ``users`` names, and one such user.

    A checkpoint may name data files of its neighbour, as ``../step-100/__0_0.distcp``.
    """
    wanted = set(going)
    found: dict[str, str] = {}
    if not wanted:
        return found
    pattern = re.compile(b"/(" + b"|".join(re.escape(os.fsencode(n)) for n in wanted) + b")/")
    for user in users:
        store = root.below(user)
        for name in store.files():
            if name == GLOBAL or RANK_LOCAL.fullmatch(name):
                for match in pattern.finditer(store.read(name, 0, store.size(name))):
                    found.setdefault(os.fsdecode(match[1]), user)
    return found


def _idle_copies(
    root: LocalStore, protected: dict[str, str], entries: list[Entry], *, spare: bool
) -> list[str]:
    """Return the copies that keepstep made and no window needs.

    Args:
        root: The run.
        protected: Names that stay.
        entries: What the ledger says.
        spare: The newest copy stays: the run itself has no complete checkpoint.
    """
    marked = steps_ever_marked(entries)
    idle = [name for name in copied(root) if name in marked and name not in protected]
    idle.sort(key=lambda name: marked[name], reverse=True)
    return idle[1:] if spare else idle


def _removal(folder: Path) -> Removal:
    return Removal(name=folder.name, bytes=sum(stat.st_size for stat in _stats(folder)))


def _freed(folders: Iterable[Path]) -> int:
    """Return the bytes of the files that have no name outside of these folders."""
    files = Counter(
        (stat.st_dev, stat.st_ino, stat.st_size, stat.st_nlink)
        for folder in folders
        for stat in _stats(folder)
    )
    return sum(size for (_, _, size, links), names in files.items() if names == links)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(place, name).lstat()
