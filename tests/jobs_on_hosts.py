"""Start ``keepstep run`` on virtual hosts, and wait for what it tells."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests.running import BYTELM, KEEPSTEP, ROOT, environment
from tests.virtual_hosts import VirtualHost

PORT = "29400"
SECRET = "a" * 64


def start(
    host: VirtualHost, folder: Path, *options: str, steps: int, secret: str = SECRET
) -> subprocess.Popen[str]:
    """Start the command on one host; what it says goes to a file."""
    log = open(folder / f"{host.name}.log", "w")  # noqa: SIM115 - closed with the process
    return subprocess.Popen(
        [*host.prefix, KEEPSTEP, "run", "--backend", "gloo", "--workers", "2", "--nnodes", "2",
         "--host", host.address, *options, BYTELM, "--steps", str(steps)],
        cwd=ROOT,
        env=environment(KEEPSTEP_SECRET=secret),
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def first(host: VirtualHost, folder: Path, *options: str, steps: int) -> subprocess.Popen[str]:
    files = ("--summary", str(folder / "summary.json"), "--events", str(folder / "events.jsonl"))
    return start(host, folder, "--port", PORT, *files, *options, steps=steps)


def other(
    host: VirtualHost, lead: VirtualHost, folder: Path, *options: str, steps: int, **more: str
) -> subprocess.Popen[str]:
    return start(host, folder, "--join", f"{lead.address}:{PORT}", *options, steps=steps, **more)


def wait_for_event(folder: Path, name: str, within: float, count: int = 1) -> None:
    path, deadline = folder / "events.jsonl", time.monotonic() + within
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if sum(json.loads(line)["event"] == name for line in lines) >= count:
            return
        assert time.monotonic() < deadline, f"no {name} within {within} s"
        time.sleep(0.1)
