"""The names of archives and of what is in them; ``members`` reads them."""

from __future__ import annotations

from pathlib import PurePath

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")


def is_archive(name: str) -> bool:
    """Tell whether ``name`` is the name of an archive that can be read."""
    return name.lower().endswith(SUFFIXES)


def stem(name: str) -> str:
    """Return the name of an archive without its suffix."""
    suffix = next(suffix for suffix in SUFFIXES if name.lower().endswith(suffix))
    return name[: -len(suffix)]


def parts(member: str) -> tuple[str, ...]:
    """Return the folders and the name of a member; they only label it, so tricks are dropped."""
    return tuple(part for part in PurePath(member).parts if part not in ("/", "..", "."))
