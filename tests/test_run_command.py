"""``keepstep run`` as a command: bad input, interruption, nothing left behind, plain torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.runtime.run_folder import place, remove_leftovers
from tests.running import (
    BYTELM,
    KEEPSTEP,
    ROOT,
    TORCHRUN,
    collect,
    command,
    environment,
    is_alive,
    processes_of,
    run,
)

pytestmark = pytest.mark.timeout(400)


def refused(*arguments: str, **variables: str) -> str:
    """Run and return what is said; the exit code must be 2."""
    done = subprocess.run(
        [KEEPSTEP, "run", *arguments],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--inject", "melt@3:1", "--workers", "2", BYTELM], "unknown fault 'melt'"),
        (["--inject", "kill@3:7", "--workers", "2", BYTELM], "rank 7 of a job with 2 ranks"),
        (["--inject", "kill", BYTELM], "KIND@STEP:RANK"),
        (["no_such_script.py"], "no such script"),
        (["--spares", "99", BYTELM], "use at most 8"),
        (["--workers", "0", BYTELM], "--workers must be 1 or more"),
        (["--workers", "9" * 23, BYTELM], "at most 1024 on a host"),
        (["--port", "99999", BYTELM], "--port 99999: wanted 1 to 65535"),
        (["--port", "-1", BYTELM], "--port -1: wanted 1 to 65535"),
        (["--metrics-port", "70000", BYTELM], "--metrics-port 70000: wanted 1 to 65535"),
        (["--nnodes", "²", BYTELM], "wanted N or MIN:MAX"),
        (["--patience", "1e300", BYTELM], "at most 86400 (a day)"),
        (["--join", "127.0.0.1:99999999", BYTELM], "HOST:PORT"),
        (["--patience", "0.01", BYTELM], "too short"),
        (["--on-loss", "panic", BYTELM], "known are replace, shrink, wait"),
        (["--backend", "mpi", BYTELM], "known are auto, gloo, nccl"),
        (["--nnodes", "3:2", BYTELM], "minimum is larger"),
        (["--join", "somewhere", BYTELM], "HOST:PORT"),
        (["--join", "127.0.0.1:1", BYTELM], "KEEPSTEP_SECRET"),
        (["--python", "/no/such/python", BYTELM], "wanted a Python to load with"),
        (["--python", "/bin/true", BYTELM], "wanted Python 3.8 or newer"),
        (["--events", "/no/such/folder/e.jsonl", BYTELM], "missing or not writable"),
        (["--summary", "jobs", BYTELM], "is a folder"),
        (["--host", "192.0.2.1", BYTELM], "does not have that address"),
        (["--nnodes", "2", BYTELM], "needs a secret that every host knows"),
        ([], "Missing argument"),
        (["--no-such-option", BYTELM], "No such option"),
    ],
)
def test_bad_input_gets_one_clear_message(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_a_full_disk_for_events_costs_lines_and_not_the_job() -> None:
    options = ("--workers", "1", "--spares", "0", "--events", "/dev/full")
    done = subprocess.run(
        [KEEPSTEP, "run", *options, BYTELM, "--steps", "3"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "events cannot be written: /dev/full: No space left on device" in done.stderr


def test_an_option_behind_the_script_is_the_scripts_and_that_is_said(tmp_path: Path) -> None:
    script = tmp_path / "done.py"
    script.write_text("")
    found = run(tmp_path, "--workers", "1", script=(str(script), "--spares", "1"))
    assert "--spares comes after" in found.output


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: in use" in refused("--port", str(port), BYTELM)


def test_the_old_backend_is_refused_with_the_variable_that_selects_it() -> None:
    said = refused("--backend", "nccl", BYTELM, TORCH_DIST_USE_NCCL2="0")
    assert "TORCH_DIST_USE_NCCL2=0" in said


def test_a_script_that_never_joins(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('hello')\n")
    found = run(tmp_path, "--workers", "2", script=(str(script),))
    assert found.exit_code == 2
    assert "without calling keepstep.join()" in found.output


def test_a_script_that_fails_before_it_trains(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import keepstep\njob = keepstep.join()\nraise ValueError('no data')\n")
    found = run(tmp_path, "--workers", "2", script=(str(script),))
    assert found.exit_code == 1
    assert "before it reached Job.train" in found.output


def test_a_script_that_joins_or_trains_twice_is_told(tmp_path: Path) -> None:
    joins, trains = tmp_path / "joins.py", tmp_path / "trains.py"
    joins.write_text("import keepstep\nkeepstep.join()\nkeepstep.join()\n")
    trains.write_text(
        "import keepstep\njob = keepstep.join()\nstate = keepstep.State(replicated={})\n"
        "for _ in range(2):\n    job.train(lambda n: None, state, steps=2)\n"
    )
    for script, said in ((joins, "join() was called a second"), (trains, "train was called a sec")):
        found = run(tmp_path, "--workers", "1", script=(str(script),))
        assert found.exit_code == 1
        assert said in found.output


def test_a_summary_that_cannot_be_written_is_told_and_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    script = tmp_path / "done.py"
    script.write_text(
        f"import keepstep, os\njob = keepstep.join()\nos.rmdir({str(folder)!r})\n"
        "job.train(lambda n: None, keepstep.State(replicated={}), steps=2)\n"
    )
    done = subprocess.run(
        [KEEPSTEP, "run", "--summary", str(folder / "s.json"), str(script)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 4
    assert "keepstep: completed: 2 steps" in done.stderr
    assert "could not be written: No such file or directory" in done.stderr
    assert '"outcome": "completed"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_launcher_that_is_gone_before_its_children_have_begun(tmp_path: Path) -> None:
    for module in ("keepstep.runtime.store", "keepstep.runtime.coordinator"):
        done = subprocess.run(
            [sys.executable, "-m", module, "127.0.0.1", "0"],
            env={**environment(), "KEEPSTEP_PARENT": "1"},
            timeout=60,
            check=False,
        )
        assert done.returncode == 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A job in the middle of its training, and every process that belongs to it."""
    process = subprocess.Popen(
        command(tmp_path, "--workers", "2", "--spares", "1", script=(BYTELM, "--steps", "100000")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 0 "):
            break
    family = processes_of(process.pid)
    assert len(family) >= 5  # two workers, a spare, coordinator, store
    yield process, family
    for pid in [process.pid, *family]:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()


def all_gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_an_ended_run_leaves_no_process_and_no_folder_for_longer_than_the_next_run(
    running: tuple[subprocess.Popen[str], list[int]], number: int, code: int, tmp_path: Path
) -> None:
    process, family = running
    process.send_signal(number)
    assert process.wait(60) == code
    summary = collect(tmp_path, code, "").summary
    if code == 130:
        assert (summary["outcome"], summary["samples_lost"]) == ("interrupted", 0)
        assert summary["steps"] > 0
    else:
        assert summary == {}
    assert all_gone(family, within=10)
    folders = f"keepstep-{process.pid}-*"
    assert len(list(place().glob(folders))) == (number == signal.SIGKILL)
    remove_leftovers(place())
    assert not list(place().glob(folders))


def test_the_same_script_runs_under_plain_torchrun() -> None:
    done = subprocess.run(
        [TORCHRUN, "--nproc-per-node", "2", BYTELM, "--steps", "3"],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "step 0 loss" in done.stdout
    assert "unsupervised" in done.stderr
