"""The live view of ``keepstep run`` on a terminal: a row a rank, and the last lines below.

The workers write to a pseudo-terminal of ours instead of the screen, so that what they print goes
above the view and not through it. Everything slow (drawing, a terminal that does not read) happens
in threads: the agent only hands over what it knows, four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import pty
import re
import statistics
import termios
import textwrap
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment

from keepstep.cli.run_sentences import Fact, count, listing
from keepstep.cli.run_view import Narrator
from keepstep.runtime.board import Board, Condition, Row, look
from keepstep.runtime.session import RunResult, Session

INTERVAL = 0.25  # seconds between two pictures
EVENTS = 8  # lines below the table
FOLD_ABOVE = 32  # ranks
NAMED_WHEN_FOLDED = 8  # rows of a folded table that keep a line of their own
RATE_WINDOW = 10.0  # seconds over which steps a second are counted
PENDING_LIMIT = 1 << 20  # bytes of workers' output; beyond, they wait as on a slow terminal
CLOSE_TIMEOUT = 5.0
HEADER = ("rank", "worker", "host", "pid", "state", "step", "own", "step time", "progress")
LEAST_WIDTHS = (4, 6, 9, 7, 21, 5, 7, 9, 8)  # so that the columns stand still
_RIGHT = {"rank", "worker", "pid", "step", "own", "step time", "progress"}

_STYLES = {
    Condition.STEP: "green",
    Condition.COMMIT: "green",
    Condition.COLLECTIVE: "cyan",
    Condition.FORMING: "yellow",
    Condition.WAITING: "yellow",
    Condition.STARTING: "dim",
    Condition.READY: "blue",
    Condition.SPARE: "blue",
    Condition.STOPPED: "bold red",
    Condition.FENCED: "bold red",
    Condition.LOST: "bold red",
    Condition.UNKNOWN: "dim",
    Condition.DONE: "dim",
}
_TROUBLE = (Condition.STOPPED, Condition.FENCED, Condition.LOST)


# --- from facts to lines --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    cells: tuple[str, ...]
    style: str


def header(board: Board, rate: float) -> tuple[str, str]:
    """Return the facts about the whole job: its pace, and its means to survive a fault."""
    steps = f"step {board.committed}" + (f" of {board.steps}" if board.steps else "")
    recoveries = sum(number for _, _, number in board.recoveries)
    starting = sum(row.rank is None and row.condition is Condition.STARTING for row in board.rows)
    spares = f"{count(board.spares_ready, 'spare')} ready"
    pace = [
        f"generation {board.generation}" if board.generation else "starting",
        steps,
        f"median step {_seconds(board.median_step)}" if board.median_step else "",
        f"{rate:.2f} steps/s" if rate and board.committed != board.steps else "",
    ]
    means = [
        f"{spares}, {starting} starting" if starting and board.generation else spares,
        "1 recovery" if recoveries == 1 else f"{recoveries} recoveries",
        "coordinator up"
        if board.coordinator_up
        else f"coordinator away, lease {board.lease_left:.1f} s",
    ]
    return " · ".join(part for part in pace if part), " · ".join(means)


def table(board: Board, room: int) -> list[Line]:
    """Return the table in at most about ``room`` lines: a line a worker, folded when many."""
    ranks = sum(row.rank is not None for row in board.rows)
    if ranks <= FOLD_ABOVE and len(board.rows) <= room:
        return [_line(row) for row in board.rows]
    return _folded(board.rows)


def _line(row: Row) -> Line:
    idle = (Condition.READY, Condition.SPARE, Condition.UNKNOWN)
    stepless = row.condition in (*idle, Condition.STARTING)
    ageless = row.condition in (*idle, Condition.DONE)
    cells = (
        "-" if row.rank is None else str(row.rank),
        str(row.wid),
        row.host or "?",
        str(row.pid) if row.pid else "?",
        state(row),
        "" if stepless else str(row.step),
        _seconds(row.busy_seconds),
        _seconds(row.step_seconds),
        "" if ageless else f"{row.age:.1f} s",
    )
    return Line(cells, _STYLES[row.condition])


def state(row: Row) -> str:
    """Return what a worker does, and for whom it waits."""
    if not row.waits_for:
        return str(row.condition)
    if len(row.waits_for) > 4:
        return f"waits for {len(row.waits_for)} ranks"
    return f"waits for {listing('rank', row.waits_for)}"


def _folded(rows: Sequence[Row]) -> list[Line]:
    blamed = {rank for row in rows for rank in row.waits_for}
    special = [row for row in rows if row.condition in _TROUBLE or row.rank in blamed]
    special = special[:NAMED_WHEN_FOLDED]
    lines = [_line(row) for row in special]
    groups: dict[tuple[bool, Condition], list[Row]] = {}
    for row in rows:
        if row not in special:
            groups.setdefault((row.rank is None, row.condition), []).append(row)
    for (_, condition), group in sorted(groups.items(), key=lambda item: item[0]):
        lines.append(_group_line(condition, group))
    return lines


def _group_line(condition: Condition, group: Sequence[Row]) -> Line:
    ranks = [row.rank for row in group if row.rank is not None]
    hosts = {row.host for row in group}
    steps = sorted({row.step for row in group}) if ranks else []
    waits = {rank for row in group for rank in row.waits_for}
    what = f"{condition}, for {listing('rank', sorted(waits)[:3])}" if waits else str(condition)
    cells = (
        _ranges(ranks) if ranks else "-",
        f"{len(group)} of them",
        next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts",
        "",
        what,
        f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else "".join(str(step) for step in steps),
        _seconds(_median([row.busy_seconds for row in group])),
        _seconds(_median([row.step_seconds for row in group])),
        f"{max(row.age for row in group):.1f} s" if ranks else "",
    )
    return Line(cells, _STYLES[condition])


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if value > 0]
    return statistics.median(known) if known else 0.0


def _ranges(numbers: Sequence[int], limit: int = 18) -> str:
    """Return "0-5,7-63", shortened where it would be long."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip(',')}…"


def _seconds(value: float) -> str:
    if value <= 0:
        return ""
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.1f} ms"


def draw(board: Board, events: Sequence[str], *, rate: float, width: int, height: int) -> Picture:
    """Return the view for a terminal of ``width`` and ``height`` characters."""
    room = max(4, height - EVENTS - 5)
    pace, means = header(board, rate)
    lines = [
        (f"keepstep {pace}", "bold"),
        (f"         {means}", "" if board.coordinator_up else "bold red"),
        *_aligned([Line(HEADER, "dim"), *table(board, room)]),
        ("", ""),
    ]
    below = max(2, height - len(lines) - 2)
    lines += [(text, "") for text in wrapped(events, width, min(below, 2 * EVENTS))]
    return Picture([(_cut(text, width - 1), style) for text, style in lines])


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)) + "…"


def _aligned(lines: Sequence[Line]) -> list[tuple[str, str]]:
    widths = [
        max(least, *(len(line.cells[place]) for line in lines))
        for place, least in enumerate(LEAST_WIDTHS)
    ]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(line.cells, widths, HEADER, strict=True)
        ]
        texts.append(("  ".join(cells), line.style))
    return texts


def wrapped(events: Sequence[str], width: int, room: int) -> list[str]:
    """Return the newest events that fit, long ones on several lines."""
    lines: list[str] = []
    for event in reversed(events[-EVENTS:]):
        block = _block(event, width)
        if lines and len(lines) + len(block) > room:
            break
        lines = [*block, *lines]
    return lines[:room]


@functools.lru_cache(maxsize=4 * EVENTS)  # the same few lines in every picture
def _block(event: str, width: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(event, max(20, width - 1), subsequent_indent=" " * 9)) or ("",)


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines with a style each. A renderable of its own: rich's Text costs twice the time."""

    lines: list[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style in self.lines:
            yield Segment(text, console.get_style(style) if style else None)
            yield Segment.line()

    def __str__(self) -> str:
        """Return the lines without styles."""
        return "\n".join(text.rstrip() for text, _ in self.lines)


@dataclass(slots=True)
class Rate:
    """Steps a second over the last seconds, pauses included."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, committed: int) -> float:
        """Note the present step count and return the rate; 0.0: not known yet."""
        if self._seen and committed < self._seen[-1][1]:
            self._seen.clear()  # the job went back to a snapshot
        if committed:
            self._seen.append((now, committed))
        while self._seen and now - self._seen[0][0] > RATE_WINDOW:
            self._seen.popleft()
        if len(self._seen) < 2 or self._seen[-1][0] - self._seen[0][0] < 1.0:
            return 0.0
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - begin)


# --- the terminal ---------------------------------------------------------------------------


class LiveView:
    """Shows the job on a terminal until it has ended; then only the lines remain.

    Attributes:
        output: descriptors for the standard output and error of the workers.
    """

    def __init__(self, stream: TextIO, narrator: Narrator, *, own_stdout: bool) -> None:
        """Draw on ``stream``. ``own_stdout``: standard output is a terminal too, so catch it."""
        self._narrator = narrator
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._terminal = WorkerTerminal(stream)
        self.output = (self._terminal.slave if own_stdout else None, self._terminal.slave)
        self._board: Board | None = None
        self._lines: deque[str] = deque(maxlen=EVENTS)  # below the table
        self._unlogged: deque[str] = deque()  # not above the view yet
        self._rate = Rate()
        self._over = threading.Event()
        self._painter = threading.Thread(target=self._paint, name="keepstep-view", daemon=True)

    def show(self, fact: Fact) -> None:
        """Take one event."""
        line = self._narrator.tell(fact)
        if line is not None:
            self._lines.append(line)
            self._unlogged.append(line)

    async def follow(self, session: Session) -> RunResult:
        """Run ``session`` under the view and return its result."""
        self._painter.start()
        watcher = asyncio.create_task(self._watch(session))
        try:
            return await session.run()
        finally:
            watcher.cancel()
            self.close()

    def close(self) -> None:
        """Remove the view, leave the lines."""
        self._terminal.finish()
        self._over.set()
        self._painter.join(CLOSE_TIMEOUT)

    async def _watch(self, session: Session) -> None:
        while True:
            if session.agent is not None:
                self._board = look(session.agent)
            await asyncio.sleep(INTERVAL)

    def _paint(self) -> None:
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with live:
                while not self._over.wait(INTERVAL):
                    self._paint_once(live)
            self._print_above(self._log(self._console.width))
            self._print_above(self._terminal.take(everything=True))
        except (OSError, ValueError):
            pass  # the terminal is gone: the job goes on
        finally:
            self._terminal.drop()  # whatever happened here, no worker may wait for it

    def _paint_once(self, live: Live) -> None:
        width, height = self._console.size
        self._terminal.resize(width, height)
        above = self._terminal.take()
        if above or len(self._unlogged) > EVENTS:
            above = self._log(width) + above
        board = self._board
        if board is not None:
            rate = self._rate.add(time.monotonic(), board.committed)
            picture = draw(board, list(self._lines), rate=rate, width=width, height=height)
            live.update(picture)
        if above:
            self._print_above(above)  # this draws the view again as well
        else:
            live.refresh()

    def _log(self, width: int) -> str:
        """Return the events since the last call.

        They go above the view when output of the workers does, so that what stays on the screen is
        in the order of time, and not before, so that a quiet job does not show them twice.
        """
        log: list[str] = []
        while self._unlogged:
            log += _block(self._unlogged.popleft(), width)
        return "".join(f"{line}\n" for line in log)

    def _print_above(self, text: str) -> None:
        if text:
            self._console.print(_Verbatim(text.removesuffix("\n")))


class _Verbatim:
    """Text that is printed as it is, colours included."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)
        yield Segment.line()


# Escape sequences that move the cursor or clear the screen would tear the view; colours (m) stay.
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[^\[]|[\x00-\x08\x0b-\x1a]")


def printable(text: str) -> str:
    """Return a worker's line as it would look on a terminal, without what moves the cursor."""
    return _MOVES.sub("", text.rstrip("\r").rpartition("\r")[2])


class WorkerTerminal:
    """A pseudo-terminal for the workers' output, read by a thread."""

    def __init__(self, stream: TextIO) -> None:
        """Open it with the size of ``stream``."""
        self._master, self.slave = pty.openpty()
        self._size = (0, 0)
        with contextlib.suppress(OSError):
            width, height = os.get_terminal_size(stream.fileno())
            self.resize(width, height)
        self._pending = bytearray()
        self._room = threading.Condition()
        self._dropped = False
        self._reader = threading.Thread(target=self._read, name="keepstep-output", daemon=True)
        self._reader.start()

    def resize(self, width: int, height: int) -> None:
        """Tell the workers the size of the screen."""
        if (width, height) != self._size:
            self._size = (width, height)
            with contextlib.suppress(OSError):
                termios.tcsetwinsize(self._master, (height, width))

    def take(self, *, everything: bool = False) -> str:
        """Return the whole lines printed since the last call, or ``everything``."""
        with self._room:
            end = len(self._pending) if everything else self._pending.rfind(b"\n") + 1
            if not end and len(self._pending) >= PENDING_LIMIT:
                end = len(self._pending)
            data = bytes(self._pending[:end])
            del self._pending[:end]
            self._room.notify_all()
        if not data:
            return ""
        lines = data.decode(errors="replace").split("\n")
        text = "\n".join(printable(line) for line in lines)
        return text if text.endswith("\n") else f"{text}\n"

    def finish(self) -> None:
        """The workers are gone: read what they left."""
        with contextlib.suppress(OSError):
            os.close(self.slave)
        self._reader.join(1.0)

    def drop(self) -> None:
        """Read on without keeping anything: nobody looks any more."""
        with self._room:
            self._dropped = True
            self._pending.clear()
            self._room.notify_all()

    def _read(self) -> None:
        fcntl.fcntl(self._master, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # every end of the workers is closed
                return
            if not data:
                return
            with self._room:
                self._room.wait_for(lambda: self._dropped or len(self._pending) < PENDING_LIMIT)
                if not self._dropped:
                    self._pending += data
