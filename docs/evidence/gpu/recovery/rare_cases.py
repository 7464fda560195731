"""Run what seldom happens with NCCL: a split step, a flipped bit in it, a store that dies, Ctrl-C.

    python docs/evidence/gpu/recovery/rare_cases.py FOLDER [BACKEND]

Needs PyTorch 2.15 with CUDA and the ``keepstep`` command's module on the path. One line a run: exit
code, digest of the final state, where each generation started, what was lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

from tests.running import processes_of  # noqa: E402

COMMAND = [sys.executable, "-c", "from keepstep.cli.main import main; main()", "run"]
BACKEND = sys.argv[2] if len(sys.argv) > 2 else "nccl"
LIMIT = 150.0  # seconds a run
TRAINING = ("jobs/bytelm.py", "--seed", "3", "--steps")
PAIR = ("--workers", "2", "--spares", "1")


@dataclass(kw_only=True)
class Case:
    """One run; ``when_live`` gets the launcher's pid when the first generation is in step."""

    name: str
    options: tuple[str, ...]
    script: tuple[str, ...]
    when_live: Callable[[int], None] | None = None
    once_lost: bool = False  # the split of the step is left out

    def run(self, folder: Path) -> str:
        """Return the line about the run."""
        folder.mkdir(parents=True)
        if self.once_lost:
            (folder / "lost").touch()
        files = (
            "--summary",
            "summary.json",
            "--events",
            "events.jsonl",
            "--incidents",
            "incidents",
        )
        placed = [str(folder / each) if not each.startswith("--") else each for each in files]
        script = [each.format(folder=folder) for each in self.script]
        with open(folder / "output.txt", "w") as output:
            job = subprocess.Popen(
                [*COMMAND, "--backend", BACKEND, *placed, *self.options, *script],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            if self.when_live is not None:
                self._wait_until_live(job, folder / "events.jsonl")
                self.when_live(job.pid)
            code = job.wait(LIMIT)
        return self._line(code, folder)

    def _wait_until_live(self, job: subprocess.Popen[bytes], events: Path) -> None:
        while job.poll() is None:
            if events.exists() and '"event": "live"' in events.read_text():
                return
            time.sleep(0.02)

    def _line(self, code: int, folder: Path) -> str:
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        starts = [f"{e['source']} {e['start_step']}" for e in events if e["event"] == "form"]
        told = [e["event"] for e in events if e["event"] in ("proven", "store_exited")]
        losses = [
            f"{r['fault']} of rank {r['rank']}, {r['lost_steps']} steps lost"
            for r in summary["recoveries"]
        ]
        return (
            f"{self.name}: {summary['outcome']} ({code}) after {summary['steps']} steps, "
            f"state {summary['state_sha256'][:12] or 'none'}; starts: {', '.join(starts)}; "
            f"{'; '.join([*told, *losses]) or 'nothing lost'}"
        )


def split(name: str, workers: int, *flipped: str, once_lost: bool = False) -> Case:
    """Return a run in which rank 2 is lost when rank 0 alone has completed the step."""
    return Case(
        name=name,
        options=("--workers", str(workers), "--spares", "1"),
        script=("tests/jobs/split.py", "{folder}", *flipped),
        once_lost=once_lost,
    )


def kill_store(launcher: int) -> None:
    """End the job's store."""
    for pid in processes_of(launcher):
        if b"keepstep.runtime.store" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def interrupt(launcher: int) -> None:
    """Press Ctrl-C after two seconds."""
    time.sleep(2.0)
    os.kill(launcher, signal.SIGINT)


CASES = [
    split("three ranks", 3, once_lost=True),
    split("three ranks, split", 3),
    split("three ranks, split, the furthest flipped", 3, "0"),
    split("three ranks, split, the one behind flipped", 3, "1"),
    split("four ranks", 4, once_lost=True),
    split("four ranks, split, the furthest flipped", 4, "0"),
    Case(name="two ranks", options=PAIR, script=(*TRAINING, "150")),
    Case(name="store lost", options=PAIR, script=(*TRAINING, "150"), when_live=kill_store),
    Case(
        name="store and then a rank lost",
        options=(*PAIR, "--inject", "kill@100:1"),
        script=(*TRAINING, "150"),
        when_live=kill_store,
    ),
    Case(name="Ctrl-C", options=PAIR, script=(*TRAINING, "100000"), when_live=interrupt),
]


if __name__ == "__main__":
    for number, case in enumerate(CASES):
        print(case.run(Path(sys.argv[1]) / str(number)), flush=True)
