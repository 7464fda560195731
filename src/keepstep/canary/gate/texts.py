"""Texts without what differs from run to run, so that two of them can be compared."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def plain(text: str) -> str:
    """Return a text in lower case, with single blanks, and every number as ``#``."""
    return _NUMBER.sub("#", " ".join(text.lower().split()))
