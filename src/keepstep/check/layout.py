"""A layout of groups, as a user writes it or as the code makes it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MOST_RANKS = 1 << 17  # more than any job has


class BadLayoutError(ValueError):
    """A layout cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One device mesh and the dimensions of it that are flattened."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    flat: tuple[tuple[str, ...], ...] = ()
    world: int

    def __str__(self) -> str:
        pairs = zip(self.names, self.sizes, strict=True)
        return ",".join(f"{name}:{size}" for name, size in pairs)


def read_layout(text: str) -> Layout:
    """Return the layout of ``mesh=dp:512,tp:8 flat=dp+tp``.

    Raises:
        BadLayoutError: It is none.
    """
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    flat: list[tuple[str, ...]] = []
    for word in text.split():
        kind, _, value = word.partition("=")
        if kind == "mesh" and re.fullmatch(r"\w+:\d+(,\w+:\d+)*", value):
            pairs = [part.split(":") for part in value.split(",")]
            names = tuple(name for name, _ in pairs)
            sizes = tuple(int(size) for _, size in pairs)
        elif kind == "flat" and value:
            flat.append(tuple(value.split("+")))
        else:
            raise BadLayoutError(f"--groups: saw {word!r}; {_WANTED}")
    _check(text, names, sizes, flat)
    return Layout(names=names, sizes=sizes, flat=tuple(flat), world=math.prod(sizes))


_WANTED = "wanted the dimensions of a device mesh, such as 'mesh=dp:512,tp:8 flat=dp+tp'"


def _check(
    text: str, names: tuple[str, ...], sizes: tuple[int, ...], flat: list[tuple[str, ...]]
) -> None:
    if not names:
        raise BadLayoutError(f"--groups: saw {text!r}; {_WANTED}")
    if len(set(names)) != len(names):
        raise BadLayoutError(f"--groups: {text!r} names a dimension twice; {_WANTED}")
    if unknown := sorted({name for each in flat for name in each} - set(names)):
        raise BadLayoutError(f"--groups: flat={unknown[0]} is no dimension of {','.join(names)}")
    if not 1 <= math.prod(sizes) <= MOST_RANKS:
        raise BadLayoutError(
            f"--groups: {text!r} is a mesh of {math.prod(sizes):,} ranks; wanted 1 to "
            f"{MOST_RANKS:,}"
        )
