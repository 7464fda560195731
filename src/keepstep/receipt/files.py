"""Receipts as files: where they lie, and whether all are there that another one counts on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from keepstep.receipt.canonical import MOST_BYTES
from keepstep.receipt.sealed import Receipt
from keepstep.receipt.statement import Kind
from keepstep.receipt.verify import Answer, Check

FOLDER = "receipts"  # in the folder of a rehearsal
SUFFIX = ".json"
REPORT, PAGE = "report.json", "report.html"
_PLAN, _HEAD = "plan.toml", "rehearsal.json"  # the second is also the name of a receipt


def find(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the receipts at some paths: files as they are, and all that lie in folders.

    A folder that has a folder ``receipts`` in it stands for that one; one of a rehearsal that has
    none holds no receipts.

    Raises:
        FileNotFoundError: There is nothing at one of the paths.
        ValueError: What is there is neither a file nor a folder.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: nothing is there; wanted a receipt or a folder of them"
            )
        if path.is_file():
            found.append(path)
            continue
        if not path.is_dir():
            raise ValueError(f"{path}: neither a file nor a folder; wanted a receipt")
        inner = path / FOLDER
        if not inner.is_dir() and _left(path, REPORT, PAGE, _PLAN):
            continue
        folder = inner if inner.is_dir() else path
        found += sorted(file for file in folder.glob(f"*{SUFFIX}") if file.is_file())
    return tuple(dict.fromkeys(found))


def rehearsals_of(folder: Path) -> tuple[Path, ...]:
    """Return the folders of rehearsals that a folder of receipts lies in: two if a link names it.

    Nothing for one that is not called ``receipts``: it may lie anywhere.
    """
    places = (Path(os.path.abspath(folder)), folder.resolve())
    return tuple(dict.fromkeys(place.parent for place in places if place.name == FOLDER))


def unsealed(paths: Iterable[Path], whole: Iterable[Path]) -> dict[Path, tuple[str, ...]]:
    """Return the folders of rehearsals over which no receipt was found, with what tells them.

    Args:
        paths: As they were given to ``find``; files stand for themselves alone.
        whole: The files that are the receipt over all of a rehearsal.
    """
    sealed = {path.parent.resolve() for path in whole}
    found: dict[Path, tuple[str, ...]] = {}
    for path in filter(Path.is_dir, paths):
        inner = path / FOLDER
        places = rehearsals_of(inner if inner.is_dir() else path)
        for folder in places or (path,):
            left = _left(folder, REPORT, PAGE, _PLAN, *((_HEAD,) if places else ()))
            if left and (folder / FOLDER).resolve() not in sealed:
                found[folder] = left
    return found


def _left(folder: Path, *names: str) -> tuple[str, ...]:
    """Return which files of a rehearsal lie in a folder."""
    return tuple(name for name in names if (folder / name).is_file())


def read(path: Path) -> bytes:
    """Return the content of a file that may be a receipt.

    A file that is far too large is not read to its end: what is returned is refused as well.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(2 * MOST_BYTES)


def check_counted(receipt: Receipt, path: Path) -> Check | None:
    """Say whether the receipts that a rehearsal counts on lie beside it, unchanged.

    Returns:
        None for a receipt of another kind: it stands alone.
    """
    if receipt.kind is not Kind.REHEARSAL:
        return None
    counted = {
        Path(str(each["file"])).name: str(each["sha256"]) for each in receipt.records["receipts"]
    }
    missing = sorted(name for name in counted if not (path.parent / name).is_file())
    changed = sorted(
        name
        for name in counted.keys() - set(missing)
        if _sha256(path.parent / name) != counted[name]
    )
    if changed:
        text = f"not the receipts that it was made from: {', '.join(changed)}"
        return Check(what="files", answer=Answer.NO, text=text)
    if missing:
        text = f"receipts that it was made from are not here: {', '.join(missing)}"
        return Check(what="files", answer=Answer.UNKNOWN, text=text)
    text = f"all {len(counted)} receipts that it was made from are beside it, unchanged"
    return Check(what="files", answer=Answer.YES, text=text)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
