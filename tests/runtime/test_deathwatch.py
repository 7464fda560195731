"""Learning of a death before the kernel has freed the memory: real processes, real signals."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keepstep.runtime.deathwatch import exit_code_if_exiting, watch
from keepstep.runtime.progress import ProgressRecord

# Holds its mutex, owns some memory and threads, then does what the test asked for.
PROGRAM = """
import ctypes, os, sys, threading
from pathlib import Path
from keepstep.runtime.progress import ProgressRecord
record = ProgressRecord.attach(Path(sys.argv[1]))
if sys.argv[2] != "never holds":
    record.life.hold()
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
memory = bytearray(os.urandom(1 << 20)) * 200
print("ready", flush=True)
sys.stdin.readline()
exec(sys.argv[2] if sys.argv[2] != "never holds" else "os._exit(3)")
"""


@contextmanager
def process(path: Path, ending: str) -> Iterator[tuple[subprocess.Popen[bytes], ProgressRecord]]:
    record = ProgressRecord.create(path)
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child, record
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


ENDINGS = [
    ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ("ctypes.string_at(0)", -signal.SIGSEGV),
    ("os._exit(7)", 7),
    ("os._exit(0)", 0),
]


@pytest.mark.parametrize(("ending", "code"), ENDINGS)
def test_the_code_is_known_from_the_death_itself(tmp_path: Path, ending: str, code: int) -> None:
    told: queue.Queue[int] = queue.Queue()
    with process(tmp_path / "record", ending) as (child, record):
        watch(record.life, child.pid, told.put)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert told.get(timeout=20) == code
        assert child.wait() == code


def test_a_stopped_process_that_is_killed_counts_as_dead(tmp_path: Path) -> None:
    told: queue.Queue[int] = queue.Queue()
    with process(tmp_path / "record", "pass") as (child, record):
        watch(record.life, child.pid, told.put)
        os.kill(child.pid, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
        assert told.get(timeout=20) == -signal.SIGKILL


def test_it_is_told_before_the_process_descriptor_is_readable(tmp_path: Path) -> None:
    """On a busy machine the thread may come late once; the kernel takes its time every time."""
    told: queue.Queue[bool] = queue.Queue()
    early = []
    for attempt in range(5):
        with process(tmp_path / f"record{attempt}", "pass") as (child, record):
            descriptor = os.pidfd_open(child.pid)

            def note(code: int, descriptor: int = descriptor) -> None:
                told.put(not select.select([descriptor], [], [], 0)[0])

            watch(record.life, child.pid, note)
            child.kill()
            early.append(told.get(timeout=20))
            os.close(descriptor)
        if early[-1]:
            return
    assert any(early)


def test_a_thread_that_ends_alone_is_no_death(tmp_path: Path) -> None:
    """The mutex is free then and the process lives: nothing may be said."""
    in_a_thread = "t = threading.Thread(target=record.life.hold); t.start(); t.join()"
    path = tmp_path / "record"
    record = ProgressRecord.create(path)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM.replace("record.life.hold()", in_a_thread),
            str(path),
            "sys.stdin.readline()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    assert record.life.wait_for_death()
    assert exit_code_if_exiting(child.pid) is None
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def test_a_process_that_never_held_it_is_left_to_the_descriptor(tmp_path: Path) -> None:
    with process(tmp_path / "record", "never holds") as (child, record):
        assert not record.life.wait_for_death()
        assert exit_code_if_exiting(child.pid) is None
