"""Processes of a run: waited for with a limit, and none of them left over."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.canary.processes import Processes

FOREVER = "import signal; signal.pause()"
# A child in a session of its own that outlives its parent, as a daemon does.
LEAVES_ONE = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {FOREVER!r}], start_new_session=True)
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as found:
        yield found


def start(processes: Processes, program: str) -> None:
    with open(os.devnull, "wb") as output:
        processes.start([sys.executable, "-c", program], os.environ, output, Path.cwd())


def codes(processes: Processes) -> list[int | None]:
    return [each.poll() for each in processes.started]


def test_all_that_end_well_are_waited_for(processes: Processes) -> None:
    for _ in range(2):
        start(processes, "")
    assert processes.wait(30, 0)
    assert codes(processes) == [0, 0]
    assert processes.left_over() == []


def test_one_that_does_not_end_is_killed_after_the_limit(processes: Processes) -> None:
    start(processes, FOREVER)
    assert not processes.wait(0.2, 0)
    processes.kill()
    assert codes(processes) == [-9]


def test_after_a_failure_the_others_have_only_the_grace(processes: Processes) -> None:
    start(processes, FOREVER)
    start(processes, "raise SystemExit(3)")
    assert not processes.wait(600, 0.1)
    processes.kill()
    assert codes(processes) == [-9, 3]


def test_one_whose_end_was_seen_before_is_not_waited_for(processes: Processes) -> None:
    start(processes, "raise SystemExit(3)")
    start(processes, "")
    processes.started[0].wait()
    assert processes.wait(30, 30)
    assert codes(processes) == [3, 0]


def test_after_a_failure_that_was_seen_before_the_others_have_only_the_grace(
    processes: Processes,
) -> None:
    start(processes, FOREVER)
    start(processes, "raise SystemExit(3)")
    processes.started[1].wait()
    assert not processes.wait(600, 0.1)


def test_a_child_that_left_the_session_is_found_and_killed(processes: Processes) -> None:
    start(processes, LEAVES_ONE)
    assert processes.wait(30, 0)
    (found,) = processes.left_over()
    assert "signal.pause" in found
    processes.kill()
    assert processes.left_over() == []


def test_an_interrupt_that_another_thread_gets_ends_the_wait(processes: Processes) -> None:
    over = threading.Event()

    def get_it() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        over.wait()

    start(processes, FOREVER)
    thread = threading.Thread(target=get_it)
    threading.Timer(0.2, thread.start).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.wait(20, 0)
    over.set()
    thread.join()
    assert time.monotonic() - begin < 15, "it was handled when the wait was over, not before"


def test_leaving_the_block_kills_everything() -> None:
    with Processes() as found:
        start(found, FOREVER)
    assert codes(found) == [-9]
