"""The file of ``--events``: one line of JSON a fact, appended by agent and coordinator.

A disk that is full costs lines of a log, never the job: a loss is told, once, and writing goes on
when there is room again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EventFile:
    """Appends facts to a file; without a path it takes them and writes nothing."""

    def __init__(self, path: str | Path | None) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._why = ""  # the last append failed, and how

    def append(self, facts: Sequence[dict[str, Any]]) -> str:
        """Append ``facts``; return why they are lost, if that was not said for those before."""
        if self._path is None or not facts:
            return ""
        before, self._why = self._why, ""
        lines = "".join(json.dumps(fact) + "\n" for fact in facts).encode()
        try:
            with open(self._path, "ab", buffering=0) as file:
                if before and _is_torn(self._path):
                    lines = b"\n" + lines
                written = file.write(lines)  # in one call: lines of two processes do not mix
                if written < len(lines):
                    raise OSError(f"{written} of {len(lines)} bytes could be written")
        except OSError as error:
            self._why = f"{self._path}: {error.strerror or error}"
        return self._why if not before else ""


def _is_torn(path: str | Path) -> bool:
    """Whether a file ends in the middle of a line."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
