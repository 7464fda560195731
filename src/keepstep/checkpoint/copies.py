"""Copies of protected checkpoints in ``run.protected`` beside ``run``, where no trainer looks.

The retention of torchtitan, Lightning, orbax and others asks for nothing on disk that could stop
it, and looks nowhere but in its own folder. So what it removes must have a second name elsewhere.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from keepstep.checkpoint.readers import GLOBAL
from keepstep.checkpoint.sibling import Placement, choose_placement, make_sibling
from keepstep.checkpoint.store import LocalStore

SUFFIX = ".protected"

# Begin and end of names that nobody takes for a checkpoint: torchtitan 0.3.0 searches a whole name
# for step-<number>, keepstep and others take a number at the end for the step.
_ASIDE = (".pruning-", ".gone")  # being deleted
_MAKING = (".making-", ".part")  # a copy that is not complete yet


def copies_folder(root: LocalStore) -> Path:
    """Return the folder for copies of a run's checkpoints; it need not exist."""
    folder = root.path.resolve()
    return folder.with_name(folder.name + SUFFIX)


def copied(root: LocalStore) -> list[str]:
    """Return the names of the checkpoints that have a copy."""
    folder = copies_folder(root)
    if not folder.is_dir():
        return []
    return sorted(e.name for e in os.scandir(folder) if _is_folder(e) and e.name[0] != ".")


def make_copy(root: LocalStore, name: str, asked: Placement | None) -> Placement | None:
    """Give a checkpoint a second name, or a copy, that the trainer does not know of.

    Args:
        root: The run.
        name: The checkpoint; a copy of it that is there already is replaced.
        asked: How its data files get there; None: by what costs no space now, else not at all.

    Returns:
        How it was done; None where only a copy that costs space is possible and was not asked for.

    Raises:
        OSError: It cannot be written there.
        CheckpointError: The checkpoint holds no file.
    """
    source, folder = root.below(name), copies_folder(root)
    temporary = folder / secrets.token_hex(8).join(_MAKING)
    temporary.mkdir(parents=True)
    try:
        placement = asked or choose_placement(source.path, temporary / name)
        if asked is None and placement is Placement.COPY:
            temporary.rmdir()
            return None
        make_sibling(source, temporary, [], placement)
        _bring_to_disk(temporary)
        if (folder / name).exists():
            set_aside(folder, name)
        os.rename(temporary, folder / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    LocalStore(folder).sync()
    return placement


def set_aside(folder: Path, name: str) -> None:
    """Take a folder out of everybody's sight in one step; ``clear`` deletes it."""
    os.rename(folder / name, folder / secrets.token_hex(8).join(_ASIDE))


def set_unfinished_aside(folder: Path) -> None:
    """Set aside what copies left behind that were cut off; nobody may be making one."""
    for entry in _entries(folder, _MAKING):
        set_aside(folder, entry.name)


def clear(folder: Path) -> None:
    """Delete what was set aside, now or by a process that was killed."""
    found = _entries(folder, _ASIDE)
    if not found:
        return
    # Or else a crash of the machine could bring a name back, and not what is deleted below it.
    LocalStore(folder).sync()
    for entry in found:
        # First what makes it a checkpoint, in case that somebody looks into it by hand.
        Path(entry.path, GLOBAL).unlink(missing_ok=True)
        shutil.rmtree(entry.path, onerror=_unless_gone)
    LocalStore(folder).sync()


def _entries(folder: Path, ends: tuple[str, str]) -> list[os.DirEntry[str]]:
    if not folder.is_dir():
        return []
    first, last = ends
    return [
        entry
        for entry in os.scandir(folder)
        if _is_folder(entry) and entry.name.startswith(first) and entry.name.endswith(last)
    ]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _unless_gone(
    function: object, path: object, failure: tuple[type, BaseException, object]
) -> None:
    """Another process may be deleting the same folder."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _bring_to_disk(folder: Path) -> None:
    for place, _, names in os.walk(folder):
        for name in names:
            handle = os.open(Path(place, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        LocalStore(Path(place)).sync()
