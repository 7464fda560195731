"""Single values of a dump: each is checked, or the file is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepstep.recorder import limits
from keepstep.recorder.plain import RefusedError, shown


def malformed(problem: str) -> RefusedError:
    """Return the refusal of a file that says something which no recorder writes."""
    return RefusedError("malformed", problem)


def text(value: object, what: str) -> str:
    """Return a text of a dump.

    Raises:
        RefusedError: it is none, too long, or cannot be written as UTF-8.
    """
    if not isinstance(value, str):
        raise malformed(f"{what}: a text was wanted, seen: {shown(value)}")
    if len(value) > limits.TEXT:
        raise RefusedError("too-large", f"{what}: a text of {len(value)} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            problem = f"{what}: half a character (a lone surrogate): {shown(value)}"
            raise malformed(problem) from None
    return value


def of_type(value: object, what: str, *types: type) -> Any:
    """Return a value of exactly one of these types."""
    if type(value) not in types:
        wanted = " or ".join(kind.__name__ for kind in types)
        raise malformed(f"{what}: {wanted} was wanted, seen: {shown(value)}")
    return value


def at_least(lowest: int, value: object, what: str) -> int:
    """Return an integer of 64 bits that is not below ``lowest``."""
    if not lowest <= of_type(value, what, int) <= limits.INTEGER:
        raise malformed(f"{what}: {shown(value)} is not from {lowest} to 2^63 - 1")
    assert isinstance(value, int)
    return value


def all_of(values: Sequence[object], types: tuple[type, ...], what: str) -> None:
    """Refuse the file unless the value of every entry has one of these types."""
    if set(map(type, values)) <= set(types):
        return
    number, value = next((n, v) for n, v in enumerate(values) if type(v) not in types)
    wanted = " or ".join(kind.__name__ for kind in types)
    raise malformed(f"entry {number}: {what}: {wanted} was wanted, seen: {shown(value)}")
