"""The coordinator process that is measured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from keepstep.runtime.handshake import new_secret
from keepstep.runtime.settings import Settings

LISTENS_WITHIN = 60.0  # seconds
STORE = "10.0.0.1:29400"  # is in every handle; nobody connects to it


@dataclass(slots=True)
class Coordinator:
    """The real coordinator, as a process of its own."""

    folder: Path
    secret: str
    port: int
    process: subprocess.Popen[bytes]
    profiled: bool

    @classmethod
    def start(cls, folder: Path, settings: Settings, profile: Path | None) -> Coordinator:
        """Start it on a free port; with ``profile``, under cProfile."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        config = folder / "coordinator.json"
        body = {
            "host": "127.0.0.1",
            "port": port,
            "journal": str(folder / "journal"),
            "events": str(folder / "events.jsonl"),
            "store": STORE,
            "name": "job",
            "settings": asdict(settings),
            "injections": [],
        }
        config.write_text(json.dumps(body))
        secret = new_secret()
        profiler = ["-m", "cProfile", "-o", str(profile)] if profile is not None else []
        process = subprocess.Popen(
            [sys.executable, *profiler, "-m", "keepstep.runtime.coordinator", str(config)],
            env={**os.environ, "KEEPSTEP_SECRET": secret},
        )
        _until_it_listens(port, process)
        return cls(folder, secret, port, process, profile is not None)

    def stop(self) -> None:
        """End it; under cProfile by SIGINT, so that the profile is written."""
        self.process.send_signal(signal.SIGINT if self.profiled else signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def cpu(self) -> float:
        """Processor time used so far, in seconds."""
        text = Path(f"/proc/{self.process.pid}/schedstat").read_text()
        return int(text.split()[0]) / 1e9

    @property
    def peak_memory(self) -> int:
        """Largest resident memory so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    @property
    def journal_bytes(self) -> int:
        """Size of the journal."""
        return (self.folder / "journal").stat().st_size

    def moments(self, event: str) -> dict[int, float]:
        """Return generation -> wall time at which all of ``event`` was handed to the kernel."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        facts = [json.loads(line) for line in lines if f'"{event}"' in line]
        return {f["generation"]: f["time"] for f in facts if f["event"] == event}


def _until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LISTENS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the coordinator does not listen; its output above says why")
