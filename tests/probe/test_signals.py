"""A signal for `keepstep probe` is one for the job: launchers know only the command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_JOB = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 9), (signal.SIGKILL, -9)]
)
@pytest.mark.timeout(60)
def test_the_job_gets_it(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB)
    start = "import sys; from keepstep.cli.main import main; sys.argv[0] = 'keepstep'; main()"
    with subprocess.Popen(
        [sys.executable, "-c", start, "probe", "--record", str(tmp_path), str(tmp_path / "job.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        process.send_signal(number)
        assert process.wait() == code
        process.stdout.read()  # until nobody holds it: the job has ended
