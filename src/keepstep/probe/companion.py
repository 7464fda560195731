"""A small process beside the rank that passes on what the rank writes to standard error.

It reads the warnings of torch's C++ side there, and it outlives the rank: what a rank says as it
dies still arrives, and so does the note of the recorder dump that it wrote last. It is no child of
the rank, so that a job that waits for all its children does not wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from keepstep.probe import leftovers
from keepstep.probe.warned import from_stderr

_LIMIT = 2.0  # seconds that the rank waits for an answer
_PATIENCE = 0.2  # and for the companion to end
_LONGEST = 1 << 16  # bytes of a line that are looked at
_ASK, _BYE = b"?", b"!"


class Companion:
    """The rank's side."""

    def __init__(self, control: socket.socket, original: int) -> None:
        self._control, self._original = control, original
        os.register_at_fork(after_in_child=control.close)

    def warnings(self) -> dict[tuple[str, str], int]:
        """Return what was read so far: (category, text) to how often."""
        return self._ask(_ASK)

    def stop(self) -> dict[tuple[str, str], int]:
        """Give standard error back; return all that was read."""
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        found = self._ask(_BYE)
        os.dup2(self._original, 2)
        with contextlib.suppress(OSError):
            # It ends when nobody can write to it any more: a child of the job may.
            self._control.settimeout(_PATIENCE)
            self._control.recv(1)
        self._control.close()
        return found

    def _ask(self, what: bytes) -> dict[tuple[str, str], int]:
        try:
            self._control.settimeout(_LIMIT)
            self._control.sendall(what)
            answer = b""
            while not answer.endswith(b"\n"):
                part = self._control.recv(1 << 16)
                if not part:
                    return {}
                answer += part
            return {(category, text): times for category, text, times in json.loads(answer)}
        except (OSError, ValueError):
            return {}  # somebody ended it; the rank goes on


def start(record: Path, began: float, *, without_dump: bool) -> Companion | None:
    """Start it; None on a terminal, which the job is to see as it is, or without standard error.

    Call it before there are threads.

    Args:
        record: The file of this rank.
        began: When the rank began (Unix time).
        without_dump: Remove the rank's recorder dump, as planted.
    """
    try:
        if os.isatty(2):
            return None
        original = os.dup(2)
    except OSError:
        return None
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        if os.fork() == 0:
            os.close(writing)
            ours.close()
            _serve(_Reading(reading, theirs, original), record, began, without_dump)
        os._exit(0)
    os.waitpid(first, 0)
    os.dup2(writing, 2)
    for each in (writing, reading):
        os.close(each)
    theirs.close()
    return Companion(ours, original)


def _serve(reading: _Reading, record: Path, began: float, without_dump: bool) -> None:
    """Be the companion, and end."""
    try:
        os.setsid()  # who ends the rank's whole group leaves it time for the last words
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text("keepstep-probe")
        if not reading.until_the_rank_ends():
            amend(record, began, reading.seen, without_dump)
        reading.until_all_is_read()
    finally:
        os._exit(0)


class _Reading:
    """The companion's side."""

    def __init__(self, source: int, control: socket.socket, target: int) -> None:
        self._source, self._control, self._target = source, control, target
        self._line = b""
        self.seen: dict[tuple[str, str], int] = {}
        os.set_blocking(source, False)

    def until_the_rank_ends(self) -> bool:
        """Pass on and answer until the rank is gone; return whether it said that it ends."""
        while True:
            ready, _, _ = select.select([self._source, self._control.fileno()], [], [])
            if self._source in ready:
                self._pass_on()
            if self._control.fileno() in ready:
                asked = self._control.recv(1)
                self._pass_on()
                if not asked:
                    return False
                answer = [[*key, times] for key, times in self.seen.items()]
                with contextlib.suppress(OSError):
                    self._control.sendall(json.dumps(answer).encode() + b"\n")
                if asked == _BYE:
                    return True

    def until_all_is_read(self) -> None:
        """Pass on until nobody can write any more."""
        while self._pass_on():
            select.select([self._source], [], [])

    def _pass_on(self) -> bool:
        """Pass on what there is; return whether more may come."""
        while True:
            try:
                data = os.read(self._source, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._write(data)
            self._look_at(data)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except BlockingIOError:
                select.select([], [self._target], [])
            except OSError:
                return  # nobody reads it any more

    def _look_at(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LONGEST:]
        for line in lines:
            found = from_stderr(line.decode(errors="replace"))
            if found is not None:
                self.seen[found] = self.seen.get(found, 0) + 1


def amend(path: Path, began: float, seen: dict[tuple[str, str], int], without_dump: bool) -> None:
    """Add to the record of a rank that could not end by itself what was seen after its last write.

    Args:
        path: The record.
        began: When the rank began (Unix time).
        seen: What it wrote to standard error, (category, text) to how often.
        without_dump: Remove its recorder dump first, as planted.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if without_dump:
        remove_dumps(began)
    texts = {(each["category"], each["text"]): each["times"] for each in record["warnings"]}
    texts.update(seen)
    record["warnings"] = [
        {"category": category, "text": text, "times": times}
        for (category, text), times in texts.items()
    ]
    record["artifacts"] = leftovers.dumps(began)
    partial = path.with_name(f".{path.name}.companion")
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(record), encoding="utf-8")
        os.replace(partial, path)


def remove_dumps(began: float) -> None:
    """Remove the recorder dumps of this rank, as planted."""
    for path in leftovers.dumps(began):
        with contextlib.suppress(OSError):
            os.remove(path)
