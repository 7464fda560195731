"""Processor time, of this very process."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.recovery.processor import used


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_side_thread_of_a_rank_is_supervision_and_its_main_thread_is_not() -> None:
    ready, done = threading.Event(), threading.Event()

    def side() -> None:
        burn(0.2)
        ready.set()
        done.wait()

    me = os.getpid()
    before = used([me], [me])
    thread = threading.Thread(target=side)
    thread.start()
    ready.wait()
    burn(0.1)
    spent = used([me], [me]).since(before)
    everything = used([me], []).since(before)
    done.set()
    thread.join()
    assert spent.supervision >= 0.2
    assert spent.training >= 0.1
    assert everything.supervision > spent.supervision


def test_a_process_that_has_ended_used_nothing() -> None:
    assert used([2**22 + 1], []).supervision == 0.0
