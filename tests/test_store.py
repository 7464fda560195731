"""The job's store ends while it is needed, and while it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.jobs_on_hosts import wait_for_event
from tests.running import (
    BYTELM,
    ROOT,
    Run,
    collect,
    command,
    environment,
    inject,
    processes_of,
    run,
)

pytestmark = pytest.mark.timeout(600)
STEPS = ("--steps", "150", "--seed", "3")


def run_without_store(folder: Path, *options: str, after: str) -> Run:
    """Run with a store that is killed when the first ``after`` has been told."""
    folder.mkdir()
    with subprocess.Popen(
        command(folder, "--workers", "2", "--spares", "1", *options, script=(BYTELM, *STEPS)),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        wait_for_event(folder, after, within=180)
        kill_store(job.pid)
        output, _ = job.communicate(timeout=240)
    return collect(folder, job.returncode, output)


def kill_store(launcher: int) -> None:
    (store,) = [pid for pid in processes_of(launcher) if is_store(pid)]
    os.kill(store, signal.SIGKILL)


def is_store(pid: int) -> bool:
    try:
        return b"keepstep.runtime.store" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("whole"), "--workers", "2", script=(BYTELM, *STEPS)).digest


def test_a_store_that_ends_while_the_job_starts_is_replaced(
    tmp_path: Path, undisturbed: str
) -> None:
    found = run_without_store(tmp_path / "job", after="agent_joined")
    assert found.exit_code == 0, found.output
    assert found.digest == undisturbed
    assert [event["code"] for event in found.of_kind("store_exited")] == [-9]


SLOW_TO_JOIN = """
import os, pathlib, time, torch, keepstep
folder = pathlib.Path(os.environ["MEETING"])
while os.environ["RANK"] == "1" and not (folder / "go").exists():
    time.sleep(0.01)
job = keepstep.join()
(folder / "joined").touch()
state = keepstep.State(replicated={"model": torch.nn.Linear(2, 2)})
job.train(lambda n: None, state, steps=3)
"""


def test_a_store_that_ends_when_a_part_of_the_job_has_joined_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLOW_TO_JOIN)
    with subprocess.Popen(
        command(tmp_path, "--workers", "2", script=(str(script),)),
        cwd=ROOT, env=environment(MEETING=str(tmp_path)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "joined").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            kill_store(job.pid)
            wait_for_event(tmp_path, "store_exited", within=60)
        finally:
            (tmp_path / "go").touch()
        output, _ = job.communicate(timeout=240)
    found = collect(tmp_path, job.returncode, output)
    assert found.exit_code == 0, found.output
    assert found.summary["steps"] == 3


def test_without_a_loss_nobody_misses_the_store(tmp_path: Path, undisturbed: str) -> None:
    found = run_without_store(tmp_path / "job", after="live")
    assert found.exit_code == 0, found.output
    assert found.faults == []
    assert found.digest == undisturbed
    assert "the next loss costs the way back to a snapshot" in found.output


def test_after_the_store_a_rank_is_lost(tmp_path: Path, undisturbed: str) -> None:
    found = run_without_store(tmp_path / "job", *inject("kill@120:1"), after="live")
    assert found.exit_code == 0, found.output
    assert found.digest == undisturbed
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    assert found.faults[0] == ("kill", 1, "replace")
    assert {fault for fault, _, _ in found.faults[1:]} == {"exit"}
    assert "the job's store has been restarted" in found.output
    assert "Traceback" not in found.output
