"""Run scripts under the probe, and read what it recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from keepstep.canary.record import RankRecord

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300.0  # seconds; a run takes 5 to 10 on two idle cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How one process ended."""

    code: int
    output: str
    errors: str


def variables(rank: int = 0, world: int = 1, port: int | None = None) -> dict[str, str]:
    """torchrun's variables for one rank."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TORCH_")},
        "PYTHONPATH": str(ROOT / "src"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or free_port()),
    }


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def probed(folder: Path, *words: str) -> list[str]:
    """The command that runs a script under the probe, options before it."""
    return [sys.executable, "-m", "keepstep.probe", "--record", str(folder), *words]


def run(command: list[str], *, world: int = 1, cwd: Path | None = None) -> list[Ended]:
    """Run a command once for each rank, to the end."""
    port = free_port()
    started = [
        subprocess.Popen(
            command,
            env=variables(rank, world, port),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ended = []
    try:
        for each in started:
            output, errors = each.communicate(timeout=LIMIT)
            ended.append(Ended(code=each.returncode, output=output, errors=errors))
    finally:
        for each in started:
            each.kill()
    return ended


def record(folder: Path, rank: int = 0) -> RankRecord:
    """What the probe recorded; it fails unless it is a valid record."""
    return RankRecord.model_validate_json((folder / f"rank-{rank}.json").read_bytes())
