"""From which PyTorch to which: the leap that a job is looked at for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OLDEST, _NEWEST = 0, 15  # minors of PyTorch 2 that the tables know


class BadLeapError(ValueError):
    """The versions are none that the tables know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leap:
    """Two minor versions of PyTorch 2, such as 14 and 15."""

    old: int
    new: int

    def crosses(self, minor: int) -> bool:
        """Return whether the leap goes up to or over 2.``minor``."""
        return self.old < minor <= self.new

    def falls_below(self, minor: int) -> bool:
        """Return whether the leap goes from 2.``minor`` or newer to an older one."""
        return self.new < minor <= self.old

    @property
    def oldest(self) -> int:
        """The older of both."""
        return min(self.old, self.new)

    def __str__(self) -> str:
        return f"2.{self.old} to 2.{self.new}"


def read_leap(old: str, new: str) -> Leap:
    """Return the leap between two versions as users write them: 2.14, 2.14.1, 2.15.0+cu132.

    Raises:
        BadLeapError: One is no PyTorch 2 that the tables know.
    """
    return Leap(old=_minor(old), new=_minor(new))


def _minor(version: str) -> int:
    match = re.fullmatch(r"2\.(\d+)([.+].*)?", version.strip())
    if match is None or not _OLDEST <= int(match[1]) <= _NEWEST:
        raise BadLeapError(
            f"saw PyTorch {version!r}; wanted a version from 2.{_OLDEST} to 2.{_NEWEST}, "
            "such as 2.14 or 2.15.0"
        )
    return int(match[1])
