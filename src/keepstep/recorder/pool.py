"""A few reading processes and the tasks they share."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from keepstep.recorder.child import PLAIN_FILE, receive, send
from keepstep.recorder.kinds import Severity
from keepstep.recorder.table import Table

# Only this package is imported there, so a process is ready after about 50 ms.
_START = "import sys; sys.path[:] = sys.argv[1:]; from keepstep.recorder.child import main; main()"
_MOST_WORKERS = 8
_FILES_WORTH_A_PROCESS = 8  # a process takes longer to start than to read fewer files
_AHEAD = 4  # answers per process that may wait to be used


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not used."""

    code: str
    text: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Task:
    """A file to read."""

    path: str
    is_archive: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task: one answer for a plain file, one per member for an archive."""

    task: int  # its index
    member: str | None
    content: Table | Refusal


def read(tasks: Sequence[Task], workers: int | None = None) -> Iterator[Answer]:
    """Yield the answers to all tasks, in any order."""
    available = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    count = min(available, -(-len(tasks) // _FILES_WORTH_A_PROCESS))
    waiting = iter(enumerate(tasks))
    answers: queue.Queue[Answer | None] = queue.Queue(_AHEAD * max(count, 1))
    stop = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(waiting, answers, stop), daemon=True)
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    running = count
    try:
        while running:
            answer = answers.get()
            if answer is None:
                running -= 1
            else:
                yield answer
    finally:
        stop.set()
        while any(thread.is_alive() for thread in threads):
            with suppress(queue.Empty):  # a thread may wait for room
                answers.get(timeout=0.05)


def _work(
    waiting: Iterator[tuple[int, Task]],
    answers: queue.Queue[Answer | None],
    stop: threading.Event,
) -> None:
    reader = _Reader()
    try:
        while not stop.is_set():
            with _TAKE:
                number, task = next(waiting, (-1, None))
            if task is None:
                break
            for member, content in reader.read(task):
                answers.put(Answer(number, member, content))
                if stop.is_set():
                    break
    finally:
        reader.end()
        answers.put(None)


_TAKE = threading.Lock()


class _Reader:
    """One reading process; started again when a file has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, task: Task) -> Iterator[tuple[str | None, Table | Refusal]]:
        begun = 0  # members of the archive that were begun
        while True:
            skip = begun if task.is_archive else PLAIN_FILE
            member: str | None = None
            before = begun
            answered = True
            try:
                process = self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                send(process.stdin, (task.path, skip))
                while (reply := receive(process.stdout)) is not None:
                    if reply[0] == "end":
                        return
                    if reply[0] == "begin":
                        begun, member, answered = begun + 1, reply[1], False
                        continue
                    yield member, _content(reply)
                    answered = True
            except OSError as error:
                if self._process is None:
                    yield None, Refusal("not-read", f"no process to read it could start ({error})")
                    return
            yield (None if answered else member), Refusal(*self._death())
            if not task.is_archive or begun == before:
                return

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    def _death(self) -> tuple[str, str]:
        """Return code and text for the file that ended the process, and forget the process."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        self.end()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return "too-large", "reading it takes more time or memory than allowed"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return "hostile", f"the process that read it was ended by {name}"
        return "not-read", f"the process that read it ended with code {code}"


def _content(reply: tuple[object, ...]) -> Table | Refusal:
    if reply[0] == "table":
        fields = reply[1]
        assert isinstance(fields, tuple)
        return Table._make(fields)
    _, code, text, severity = reply
    return Refusal(str(code), str(text), Severity(str(severity)))
