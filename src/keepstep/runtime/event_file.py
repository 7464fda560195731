"""The file of ``--events``: one line of JSON a fact, appended by agent and coordinator.

A disk that is full costs lines of a log, never the job: a loss is told, once, and writing goes on
when there is room again.
"""

from __future__ import annotations

import json
import os
import stat
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
            with open(self._path, "ab", buffering=0, opener=_at_once) as file:
                if _is_torn(self._path, file.fileno()):
                    lines = b"\n" + lines
                # In one call: lines of two processes do not mix. None: a pipe is full.
                written = file.write(lines) or 0
                if written < len(lines):
                    raise OSError(f"{written} of {len(lines)} bytes could be written")
        except OSError as error:
            self._why = f"{self._path}: {error.strerror or error}"
        return self._why if not before else ""


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody who reads, as a pipe would have us wait."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _is_torn(path: str | Path, descriptor: int) -> bool:
    """Whether a file ends in the middle of a line, which its writer could not write to the end."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0 or not os.access(path, os.R_OK):
        return False
    with open(path, "rb") as file:
        return os.pread(file.fileno(), 1, facts.st_size - 1) != b"\n"
