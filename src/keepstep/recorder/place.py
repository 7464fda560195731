"""Whose dump a file is, as far as its path says: rank, host and attempt.

A dump says none of this itself (pytorch/pytorch#117883), so folders and names are all there is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keepstep.recorder import archive

Parts = tuple[str, ...]  # folders and name, seen from the top of the tree

_SUFFIXES = re.compile(r"(?:\.(?:json|pickle|pkl|pt|bin|trace|dump|txt))+$", re.IGNORECASE)
_EXPLICIT = re.compile(r"rank[_.-]?(\d{1,8})(?!\d)", re.IGNORECASE)
_TRAILING = re.compile(r"(?<!\d)(\d{1,8})$")
_ATTEMPT_WORDS = "attempt|restart|retry|run|try|generation|gen|incident|round|job|step|epoch"
_DATE = r"20\d{2}[-_]?\d{2}[-_]?\d{2}(?:[-_T.]?\d{2}[-_:]?\d{2}(?:[-_:]?\d{2})?)?Z?|\d{10,19}"
_ATTEMPT = re.compile(
    rf"(?:(?<=[_.-])|^)((?:{_ATTEMPT_WORDS})[_.-]?\d+|{_DATE})(?=[_.-]|$)", re.IGNORECASE
)
_NOT_A_HOST = re.compile(
    r"(?:comm|lib|nccl2?|gloo|lazy|legacy|hccl|xccl|mccl|torchcomms?|c10d|fr|flight|recorder|traces?"
    r"|dumps?|debug|info|logs?|torch|cache|rank|ranks|json|pickle|data|out|output|tmp|all|\d+|[_.-])*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """What the path of a file says."""

    ranks: tuple[int, ...]  # the likeliest first; () where the name holds no number
    host: str | None
    attempt: str


def folder(parts: Parts) -> Parts:
    """Return the folders of a file; an archive counts as one."""
    return tuple(archive.stem(part) if archive.is_archive(part) else part for part in parts[:-1])


def places(files: Sequence[Parts]) -> list[Place]:
    """Return what the paths of all ``files`` of one tree say, in their order."""
    by_folder: dict[Parts, list[int]] = defaultdict(list)
    for number, parts in enumerate(files):
        by_folder[folder(parts)].append(number)
    folder_hosts = _folder_hosts(sorted(by_folder))
    found: dict[int, Place] = {}
    for folders, numbers in by_folder.items():
        names = [_Name.of(files[number][-1]) for number in numbers]
        prefer_trailing = _varied(name.trailing for name in names) > _varied(
            name.explicit for name in names
        )
        hosts = {name.rest for name in names}
        for number, name in zip(numbers, names, strict=True):
            candidates = (name.trailing, name.explicit)
            ordered = candidates if prefer_trailing else candidates[::-1]
            ranks = tuple(dict.fromkeys(rank for rank in ordered if rank is not None))
            attempts = [part for part in folders if _ATTEMPT.fullmatch(part)]
            attempts += [name.attempt] if name.attempt else []
            host = (name.rest or None) if len(hosts) > 1 else None
            found[number] = Place(ranks, host or folder_hosts[folders], "/".join(attempts))
    return [found[number] for number in range(len(files))]


@dataclass(frozen=True, slots=True)
class _Name:
    explicit: int | None  # the number after the word "rank"
    trailing: int | None  # the number at the end, where PyTorch puts the rank
    attempt: str
    rest: str  # what may be a host

    @staticmethod
    def of(name: str) -> _Name:
        stem = _SUFFIXES.sub("", name)
        attempt = _ATTEMPT.search(stem)
        if attempt:
            without = f"{stem[: attempt.start()].rstrip('_.-')}{stem[attempt.end() :]}"
            if re.search(r"\d", without):
                stem = without
            else:  # "run_3": its only number is the rank
                attempt = None
        explicit = list(_EXPLICIT.finditer(stem))
        trailing = _TRAILING.search(stem)
        rest = stem
        if explicit:
            rest = rest[: explicit[-1].start()] + rest[explicit[-1].end() :]
        elif trailing:
            rest = rest[: trailing.start()]
        return _Name(
            explicit=int(explicit[-1][1]) if explicit else None,
            trailing=int(trailing[1]) if trailing else None,
            attempt=attempt[1] if attempt else "",
            rest=_host(rest),
        )


def _host(text: str) -> str:
    """Return the part of a name that may be a host: what is left without the usual words."""
    words = re.split(r"_", text.strip("_.-"))
    kept = [word for word in words if word and not _NOT_A_HOST.fullmatch(word)]
    return "_".join(kept)


def _varied(numbers: Iterable[int | None]) -> int:
    return len({number for number in numbers if number is not None})


def _folder_hosts(folders: Sequence[Parts]) -> dict[Parts, str | None]:
    """Return the host of each folder: its last part that has siblings and is no usual word."""
    children: dict[Parts, set[str]] = defaultdict(set)
    for parts in folders:
        for depth in range(len(parts)):
            children[parts[:depth]].add(parts[depth])
    hosts: dict[Parts, str | None] = {}
    for parts in folders:
        likely = (
            part
            for depth, part in reversed(list(enumerate(parts)))
            if not _NOT_A_HOST.fullmatch(part)
            and not _ATTEMPT.fullmatch(part)
            and len(children[parts[:depth]]) > 1
        )
        hosts[parts] = next(likely, None)
    return hosts


def looks_like_dump(name: str) -> bool:
    """Tell whether a file of this name was probably meant to be a dump."""
    stem = _SUFFIXES.sub("", name)
    return bool(_EXPLICIT.search(stem) or _TRAILING.search(stem) or "trace" in stem)
