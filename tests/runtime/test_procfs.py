"""What the kernel says of a thread that computes, waits for a processor, or sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from keepstep.runtime.procfs import state_and_work

SPIN = "import sys; print('ready', flush=True)\nwhile True: pass"
REST = "import sys; print('ready', flush=True); sys.stdin.read()"


def started(program: str, *, cpu: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    os.sched_setaffinity(process.pid, {cpu})
    assert process.stdout is not None
    process.stdout.readline()
    return process


def work_in(pids: list[int], seconds: float) -> list[float]:
    """Seconds of work of each, over the seconds that really passed."""
    began, before = time.monotonic(), [state_and_work(pid)[1] for pid in pids]
    while time.monotonic() - began < seconds:
        os.sched_yield()
    passed = time.monotonic() - began
    return [(state_and_work(pid)[1] - old) / passed for pid, old in zip(pids, before, strict=True)]


def test_a_thread_that_waits_for_a_processor_counts_as_one_that_works() -> None:
    """Four share one processor: none runs more than a third of the time, all want to."""
    cpu = min(os.sched_getaffinity(0))
    processes = [started(SPIN, cpu=cpu) for _ in range(4)] + [started(REST, cpu=cpu)]
    try:
        *spinning, resting = work_in([process.pid for process in processes], 1.0)
        assert min(spinning) > 0.8
        assert resting < 0.2
        assert state_and_work(processes[0].pid)[0] == "R"
        assert state_and_work(processes[-1].pid)[0] == "S"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert state_and_work(processes[0].pid) == ("X", 0.0)
