"""Warnings of the job's process, in a form that is the same from run to run."""

from __future__ import annotations

import functools
import logging
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.probe.record import Record

_LONGEST = 600
_MOST = 200  # different ones
_TAKEN_OUT = (
    (re.compile(r"0x[0-9a-fA-F]{4,}"), "ADDRESS"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "HOST"),
    (re.compile(r"\[[0-9a-fA-F:]*::[0-9a-fA-F:]*\](?::\d+)?"), "HOST"),
    (re.compile(r"\]:\d+"), "]:PORT"),
    (re.compile(r"\bfd=\d+"), "fd=N"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "TIME"),
    (re.compile(r"(?<![\w/])/(?:[\w.+@~-]+/)+([\w.+@~-]*)"), r"\1"),  # paths: the last name stays
    (re.compile(r"(\.(?:py|cpp|cc|cu|h|hpp)):\d+"), r"\1"),  # lines move with each version
    (re.compile(r"\b(pid|tid|process|thread|port)(\W{1,3})\d+", re.IGNORECASE), r"\1\2N"),
    (
        re.compile(
            r"\b\d+(?:\.\d+)?(?:e[+-]?\d+)?(\s*)(ns|us|ms|s|secs?|seconds?|milliseconds?|minutes?)\b"
        ),
        r"N\1\2",
    ),
)
# [rank0]:[W1130 00:33:56.123456789 ProcessGroupNCCL.cpp:1250] Warning: ...
_FROM_CPP = re.compile(
    r"(?:\[rank\d+\]:)?\s*\[([WEF])\d{4} [\d:.]+ (?:\d+ )?([\w./+-]+):\d+\]\s*(.*)"
)
_FROM_NCCL = re.compile(r".*\bNCCL WARN (.*)")
_LETTERS = {"W": "warning", "E": "error", "F": "fatal"}


def normal(text: str) -> str:
    """Take out of a text what differs from run to run: addresses, times, process numbers, paths."""
    host = os.uname().nodename
    text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text) if host else text
    for pattern, instead in _TAKEN_OUT:
        text = pattern.sub(instead, text)
    return " ".join(text.split())[:_LONGEST]


def from_stderr(line: str) -> tuple[str, str] | None:
    """Return category and text of a line that torch's C++ side or NCCL wrote; None for others."""
    found = _FROM_CPP.match(line)
    if found is not None:
        where = found[2].rpartition("/")[2]
        return f"C++ {_LETTERS[found[1]]}", normal(f"{where}: {found[3]}")
    found = _FROM_NCCL.match(line)
    return None if found is None else ("NCCL warning", normal(found[1]))


class Warned:
    """Listens where warnings pass; everything is shown as without it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def watch(self) -> None:
        """Listen to the warnings that are shown and to the log of torch."""
        shown = warnings.showwarning

        @functools.wraps(shown)
        def showwarning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            self.add(category.__name__, normal(str(message)))
            shown(message, category, *args, **kwargs)

        warnings.showwarning = showwarning
        handled = logging.Logger.callHandlers

        @functools.wraps(handled)
        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING and _is_of_torch(record.name):
                self.add(f"log of {record.name}", normal(record.getMessage()))
            handled(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment]

    def add(self, category: str, text: str) -> None:
        """Count one."""
        if (category, text) in self._record.warnings or len(self._record.warnings) < _MOST:
            self._record.add_warning(category, text)


def _is_of_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch" or name == "py.warnings"
