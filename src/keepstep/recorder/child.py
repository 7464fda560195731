"""The process in which files are read: what a file makes it do ends with it.

It has little memory, little processor time, and may write no file. It gets tasks on its standard
input and answers on its standard output, each a ``marshal`` value after its length in eight bytes.

A task is (path, number of archive members to skip, or -1 for a plain file). Answers: ("begin",
member), ("table", columns), ("refused", code, text, severity) and, last, ("end",).
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import stat
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from keepstep.recorder import limits
from keepstep.recorder.kinds import Severity
from keepstep.recorder.plain import RefusedError, may_be_dump, shown, too_large
from keepstep.recorder.shape import table

PLAIN_FILE = -1
_HEAD = 4096  # bytes; enough to tell a dump from something else

Answer = tuple[Any, ...]


def main() -> None:
    """Answer tasks until the standard input ends."""
    confine()
    gc.disable()
    gc.freeze()
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    while (task := receive(tasks)) is not None:
        path, skip = task
        answer_task(path, skip, lambda answer: send(answers, answer))
        send(answers, ("end",))


def confine() -> None:
    """Give up what reading a dump does not need. A child of this process gets no more."""
    for limit, amount in (
        (resource.RLIMIT_AS, limits.CHILD_MEMORY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        _, hard = resource.getrlimit(limit)
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(limit, (amount, amount))
    sys.dont_write_bytecode = True  # of what is imported only now


def _renew_processor_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + limits.CHILD_SECONDS
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def send(stream: IO[bytes], value: Any) -> None:
    """Write one value."""
    payload = marshal.dumps(value)
    stream.write(len(payload).to_bytes(8, "little") + payload)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return one value, None at the end of the stream."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    payload = stream.read(int.from_bytes(length, "little"))
    return marshal.loads(payload) if len(payload) == int.from_bytes(length, "little") else None


def answer_task(path: str, skip: int, answer: Callable[[Answer], None]) -> None:
    """Read one file or archive; whatever is wrong with it becomes an answer."""
    _renew_processor_time()
    try:
        if skip == PLAIN_FILE:
            answer(_answer_of(partial(read_plain_file, path)))
            return
        from keepstep.recorder import members  # few files are archives; it imports much

        for name, content in members.members(path, skip):
            _renew_processor_time()
            answer(("begin", printable(name)))
            answer(_answer_of(partial(_or_raise, content)))
    except RefusedError as refusal:
        answer(_refused(refusal))


def _or_raise(content: bytes | RefusedError) -> bytes:
    if isinstance(content, RefusedError):
        raise content
    return content


def _answer_of(content: Callable[[], bytes]) -> Answer:
    try:
        return ("table", tuple(table(content())))
    except RefusedError as refusal:
        return _refused(refusal)
    except MemoryError:
        return _refused(RefusedError("too-large", "the dump needs more memory than allowed"))
    except Exception as error:  # a fault of ours: say so, and read the other files
        reason = shown(f"{type(error).__name__}: {error}")
        return _refused(RefusedError("not-read", f"keepstep failed on this file ({reason})"))
    finally:
        gc.collect()


def _refused(refusal: RefusedError) -> Answer:
    return ("refused", refusal.code, refusal.text, str(refusal.severity))


def printable(name: str) -> str:
    """Return a name that can be printed; names may hold bytes that are no text."""
    return name.encode("utf-8", "backslashreplace").decode()


def read_plain_file(path: str) -> bytes:
    """Return the content of a regular file; of something that is no dump, only its head.

    Raises:
        RefusedError: it is not regular, too large or unreadable.
    """
    try:
        # Without blocking: the file may have been replaced by a pipe since it was listed.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError("not-a-file", "not a regular file", Severity.NOTE)
            if status.st_size > limits.FILE_BYTES:
                raise too_large(status.st_size)
            head = file.read(_HEAD)
            if not may_be_dump(head):
                return head
            content = head + file.read(limits.FILE_BYTES)
    except OSError as error:
        raise RefusedError("unreadable", f"{error.strerror or error}") from None
    return content


if __name__ == "__main__":
    main()
