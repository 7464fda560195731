"""A converted checkpoint in a folder of its own, beside an untouched source."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from keepstep.checkpoint.downgrade import KEPT, RECORD, Conversion
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL, TEMPORARY
from keepstep.checkpoint.store import UNFINISHED, LocalStore

_FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file until one of both is written


class Placement(StrEnum):
    """How the data files get into the new folder."""

    REFLINK = "reflink"  # shares blocks; neither notices when the other is written
    LINK = "link"  # the same file under a second name
    COPY = "copy"


def choose_placement(source: Path, target: Path) -> Placement:
    """Return the first placement that works from ``source`` to the folder of ``target``.

    It is tried with a file of the source, in a folder that is removed again.

    Raises:
        CheckpointError: ``target`` exists, or its folder cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target}: it exists; wanted: a folder that is empty or new")
    above = target.absolute().parent
    if not above.is_dir():
        raise CheckpointError(f"{target}: its folder has to be there: mkdir -p {above}")
    sample = next((path for path in sorted(source.iterdir()) if path.is_file()), None)
    if sample is None:
        raise CheckpointError(f"{source}: it holds no file")
    try:
        with tempfile.TemporaryDirectory(dir=above) as folder:
            for placement in (Placement.REFLINK, Placement.LINK):
                try:
                    _PLACE[placement](sample, Path(folder, placement))
                except OSError:
                    continue
                return placement
    except OSError as error:
        raise CheckpointError(f"{target}: {error.strerror or error}") from None
    return Placement.COPY


def make_sibling(
    source: LocalStore, target: Path, conversions: list[Conversion], placement: Placement
) -> None:
    """Fill ``target`` with the data files of ``source`` and the converted metadata, that last.

    Until the metadata is there, ``target`` is no checkpoint, and nobody takes it for one.
    """
    converted = {conversion.name: conversion.after.data for conversion in conversions}
    last = []
    for name in sorted(source.files()):
        if name.endswith((KEPT, RECORD, UNFINISHED)) or name == TEMPORARY:
            continue
        if name in converted or name == GLOBAL or RANK_LOCAL.fullmatch(name):
            last.append(name)
            continue
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _PLACE[placement](source.path / name, path)
    target.mkdir(exist_ok=True)
    store = LocalStore(target)
    for name in last:
        data = converted.get(name)
        store.put(name, source.read(name, 0, source.size(name)) if data is None else data)
        shutil.copystat(source.path / name, target / name)


def _reflink(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("xb") as new:
        fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    shutil.copystat(source, target)


def _link(source: Path, target: Path) -> None:
    os.link(source, target)


def _copy(source: Path, target: Path) -> None:
    shutil.copy2(source, target)


_PLACE: dict[Placement, Callable[[Path, Path], None]] = {
    Placement.REFLINK: _reflink,
    Placement.LINK: _link,
    Placement.COPY: _copy,
}
