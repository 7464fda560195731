"""Stacks of the main thread, from what faulthandler and py-spy write."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from keepstep.incident.stacks import DEEPEST, MainThread, parse
from keepstep.recorder.model import Frame

STEP, MAIN = Frame("step", "/srv/train.py", 31), Frame("main", "/srv/train.py", 9)
FRAMES = '  File "/srv/train.py", line 31 in step\n  File "/srv/train.py", line 9 in main\n'
OTHER = '  File "/usr/lib/python3.11/socket.py", line 294 in accept\n'
THREADS = {
    "3.11": ("Thread 0x00007f01 (most recent call first):", "Current thread 0x00007f02 (most "
             "recent call first):"),
    "3.14": ("Thread 0x00007f01 [reader] (most recent call first):", "Current thread 0x00007f02 "
             "[python3] (most recent call first):"),
}  # fmt: skip


@pytest.mark.parametrize("version", THREADS)
def test_the_main_thread_is_the_one_that_is_named(version: str) -> None:
    main, current = THREADS[version]
    text = f"main thread 0x00007f01\n{current}\n{OTHER}\n{main}\n{FRAMES}"
    assert parse(text.encode()) == MainThread((STEP, MAIN))
    swapped = f"main thread 0x00007f01\n{main}\n{FRAMES}\n{current}\n{OTHER}"
    assert parse(swapped.encode()) == MainThread((STEP, MAIN))


@pytest.mark.parametrize("version", THREADS)
def test_without_a_name_it_is_the_last_one(version: str) -> None:
    main, current = THREADS[version]
    text = f"{current}\n{OTHER}\n{main}\n{FRAMES}"
    assert parse(text.encode()).frames == (STEP, MAIN)


def test_what_newer_pythons_add_is_skipped() -> None:
    text = (
        "Current thread 0x00007f01 [python3] (most recent call first):\n  Garbage-collecting\n"
        f"{FRAMES}\nCurrent thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at +0x3c050 [0x7f]\n  <truncated rest of calls>\n'
    )
    assert parse(text.encode()).frames == (STEP, MAIN)


def test_a_single_thread_has_no_number() -> None:
    assert parse(f"Stack (most recent call first):\n{FRAMES}".encode()).frames == (STEP, MAIN)


def test_an_unknown_line_and_an_odd_name_are_kept() -> None:
    text = 'Stack (most recent call first):\n  File "/a "b", line 1", line ??? in <module>\n'
    assert parse(text.encode()).frames == (Frame("<module>", '/a "b", line 1', 0),)


def test_this_python_writes_a_form_that_is_read() -> None:
    program = (
        "import faulthandler, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def innermost(): faulthandler.dump_traceback(sys.stdout)\n"
        "innermost()\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert [frame.function for frame in parse(found.stdout).frames] == ["innermost", "<module>"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"main thread 0x1\n",
        b"main thread 0x1\nThread 0x2 (most recent call first):\n" + FRAMES.encode(),
        b'Stack (most recent call first):\n  File "x", line ' + b"9" * 5000 + b" in f",
        b"[",
        b"[5]",
        b"[{}]",
        b"[" * 200_000,
        b'[{"pid": 1, "os_thread_id": 1, "frames": {}}]',
        b'[{"pid": 1, "os_thread_id": 1, "frames": [{"name": 1, "filename": 2, "line": null}]}]',
        b'[{"pid": 1, "os_thread_id": 1, "frames": [{"name": 1, "filename": 2, "line": 1e999}]}]',
    ],
)
def test_what_is_no_stack_gives_no_frames(data: bytes) -> None:
    assert parse(data) == MainThread()


def py_spy(**changes: Any) -> bytes:
    frames = [
        {"name": "step", "filename": "/srv/train.py", "line": 31},
        {"name": "main", "filename": "/srv/train.py", "line": 9},
    ]
    other = {"pid": 7, "os_thread_id": 9, "owns_gil": True, "frames": frames[:1]}
    main = {"pid": 7, "os_thread_id": 7, "owns_gil": False, "frames": frames, **changes}
    return json.dumps([other, main]).encode()


def test_the_main_thread_of_py_spy_has_the_number_of_its_process() -> None:
    assert parse(py_spy()) == MainThread((STEP, MAIN), holds_gil=False)
    assert parse(b"\n " + py_spy(owns_gil=True)).holds_gil
    assert parse(py_spy(os_thread_id=8)) == MainThread()


def test_endless_recursion_is_cut() -> None:
    frame = {"name": "f", "filename": "/x.py", "line": 1}
    assert len(parse(py_spy(frames=[frame] * 5000)).frames) == DEEPEST
    text = "Stack (most recent call first):\n" + FRAMES * 500
    assert len(parse(text.encode()).frames) == DEEPEST
