"""A job whose processes are all suspended for longer than any limit, and go on.

`scontrol suspend`, `docker pause` and a migrated virtual machine do that; SIGSTOP stands for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.jobs_on_hosts import first, other, wait_for_event
from tests.running import BYTELM, ROOT, collect, command, environment, processes_of, run
from tests.virtual_hosts import VirtualHost

pytestmark = pytest.mark.timeout(600)
LONGER_THAN_A_LEASE = 8.0  # seconds; a lease is 3 at the shortest, and fencing has half a second


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_suspended_job_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    steps = ("--steps", "60", "--seed", "3")
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = run(whole, "--workers", "2", script=(BYTELM, *steps))
    folder = tmp_path / "suspended"
    folder.mkdir()
    options = ("--workers", "2", "--spares", "1")
    with subprocess.Popen(
        command(folder, *options, script=(BYTELM, *steps)),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        wait_for_event(folder, "live", within=180)
        time.sleep(1)  # some steps in peace
        processes = [job.pid, *processes_of(job.pid)]
        send(processes, signal.SIGSTOP)
        time.sleep(LONGER_THAN_A_LEASE)
        send(processes, signal.SIGCONT)
        output, _ = job.communicate(timeout=240)
    found = collect(folder, job.returncode, output)
    assert found.exit_code == 0, found.output
    assert found.faults == []
    assert found.summary["generations"] == 1
    assert found.digest == undisturbed.digest
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    assert [event["seconds"] > 5 for event in found.of_kind("held_up")] == [True]
    assert "did not run for" in found.output


def test_a_coordinator_that_is_suspended_alone_is_replaced_and_costs_nothing(
    tmp_path: Path,
) -> None:
    script = (BYTELM, "--steps", "300", "--seed", "3")  # not done before a lease has ended
    with subprocess.Popen(
        command(tmp_path, "--workers", "2", "--spares", "1", script=script),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        wait_for_event(tmp_path, "live", within=180)
        (coordinator,) = [pid for pid in processes_of(job.pid) if is_coordinator(pid)]
        send([coordinator], signal.SIGSTOP)
        output, _ = job.communicate(timeout=240)
    found = collect(tmp_path, job.returncode, output)
    assert found.exit_code == 0, found.output
    assert found.faults == []
    assert found.summary["generations"] == 1
    assert [event["stopped_s"] >= 0.9 for event in found.of_kind("coordinator_exited")] == [True]
    assert "had been stopped" in found.output


def is_coordinator(pid: int) -> bool:
    try:
        return b"keepstep.runtime.coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_launcher_that_is_suspended_alone_costs_a_way_back_and_not_the_job(
    tmp_path: Path,
) -> None:
    script = (BYTELM, "--steps", "600", "--seed", "3")  # not done before the lease has ended
    options = ("--workers", "2", "--spares", "1", "--patience", "1")
    with subprocess.Popen(
        command(tmp_path, *options, script=script),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        wait_for_event(tmp_path, "live", within=180)
        time.sleep(1)  # some steps in peace
        send([job.pid], signal.SIGSTOP)
        time.sleep(LONGER_THAN_A_LEASE)
        send([job.pid], signal.SIGCONT)
        output, _ = job.communicate(timeout=240)
    found = collect(tmp_path, job.returncode, output)
    assert found.exit_code == 0, found.output
    assert found.faults  # its workers have ended themselves, as those of a host that is cut off
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)


def test_a_host_that_was_suspended_ends_what_others_have_replaced(
    hosts: list[VirtualHost], tmp_path: Path
) -> None:
    one, two = hosts
    options = ("--spares", "1", "--on-loss", "shrink")
    lead = first(one, tmp_path, *options, steps=260)
    joined = other(two, one, tmp_path, *options, steps=260)
    suspended: list[int] = []
    try:
        wait_for_event(tmp_path, "live", within=180)
        time.sleep(1)  # some steps in peace
        suspended = two.processes()
        send(suspended, signal.SIGSTOP)
        wait_for_event(tmp_path, "live", within=60, count=2)
        time.sleep(1)  # some steps without it
        send(suspended, signal.SIGCONT)
        assert lead.wait(240) == 0
        assert joined.wait(30) == 0
    finally:
        send(suspended, signal.SIGCONT)
        for process in (lead, joined):
            process.kill()
    found = collect(tmp_path, 0, "")
    faults = [entry["fault"] for entry in found.summary["recoveries"]]
    assert [fault for fault in faults if fault != "slow"] == ["partition"] * 2
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    assert [event["world_size"] for event in found.of_kind("live")][-1] == 4
    assert "did not run for" in (tmp_path / f"{two.name}.log").read_text()
