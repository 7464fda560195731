"""Stacks of the main thread, from what faulthandler or py-spy wrote. Nothing here raises."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from keepstep.recorder.model import Frame

DEEPEST = 200  # frames that are kept
_MAIN = re.compile(r"main thread (0x[0-9a-f]+)\s*$")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)\b.*:$")
_ONLY_THREAD = "Stack (most recent call first):"  # what faulthandler writes of a single thread
_FRAME = re.compile(r'  File "(.*)", line ([0-9]{1,9}|\?\?\?) in (.*)$')


@dataclass(frozen=True, slots=True)
class MainThread:
    """The main thread of one process; ``frames`` innermost first, empty where unknown."""

    frames: tuple[Frame, ...] = ()
    holds_gil: bool = False


def parse(data: bytes) -> MainThread:
    """Read stacks in either form; what is neither gives no frames."""
    text = data.decode(errors="replace")
    if text.lstrip().startswith("["):
        return _from_py_spy(text)
    return MainThread(_from_faulthandler(text.splitlines()))


def _from_faulthandler(lines: list[str]) -> tuple[Frame, ...]:
    named = _MAIN.match(lines[0]) if lines else None
    wanted = named.group(1) if named else None
    found: dict[str, list[Frame]] = {}
    current: list[Frame] = []
    for line in lines:
        if thread := _THREAD.match(line):
            current = found.setdefault(thread.group(1), [])
        elif line == _ONLY_THREAD:
            current = found.setdefault("", [])
        elif frame := _FRAME.match(line):
            file, number, function = frame.groups()
            current.append(Frame(function, file, 0 if number == "???" else int(number)))
    if wanted is None:  # faulthandler lists the main thread last
        wanted = next(reversed(found), "")
    return tuple(found.get(wanted, [])[:DEEPEST])


def _from_py_spy(text: str) -> MainThread:
    try:
        threads = json.loads(text)
        main = next(each for each in threads if each["os_thread_id"] == each["pid"])
        frames = tuple(_frame(each) for each in main["frames"][:DEEPEST])
        return MainThread(frames, main.get("owns_gil") is True)
    except (ValueError, TypeError, KeyError, StopIteration, ArithmeticError, RecursionError):
        return MainThread()


def _frame(body: dict[str, Any]) -> Frame:
    return Frame(str(body["name"]), str(body["filename"]), int(body["line"]))
