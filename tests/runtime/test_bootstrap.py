"""The last moments of a worker process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def leave(what: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "tests" / "jobs" / "leaves_in_style.py")
    command = [sys.executable, "-m", "keepstep.runtime.bootstrap", str(os.getpid()), script, what]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("what", "code", "error"), [("0", 0, ""), ("7", 7, ""), ("no data", 1, "no data\n")]
)
def test_it_ends_as_an_interpreter_does(what: str, code: int, error: str) -> None:
    left = leave(what)
    assert left.stdout.splitlines() == ["a thread finished", "an exit handler ran"]
    assert left.stderr == error
    assert left.returncode == code


def test_an_exception_prints_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("raise KeyError('gone')\n")
    command = [sys.executable, "-m", "keepstep.runtime.bootstrap", str(os.getpid()), str(script)]
    left = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert left.returncode == 1
    assert "Traceback" in left.stderr
    assert "KeyError: 'gone'" in left.stderr


def test_communication_before_train_gets_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(
        'raise RuntimeError("ProcessGroupGloo has no peers. Call reconfigure() first")'
    )
    command = [sys.executable, "-m", "keepstep.runtime.bootstrap", str(os.getpid()), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "job.data_parallel(model)" in done.stderr
