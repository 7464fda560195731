"""Time ``status`` over the checkpoints of a run, in a folder and on an S3 server of this machine.

    python -m benchmarks.checkpoint.status [STEPS]

The worst case: no checkpoint is readable for 2.14, so all are looked at. The server (moto's) is one
process; its processor time is printed as well, because on a busy or small machine it is what the
client waits for.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import fsspec

from benchmarks.checkpoint.s3_server import Server, s3_server
from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.status import find_status
from keepstep.checkpoint.store import Store, open_store


def processor_time(server: Server) -> float:
    """Return the seconds of processor time that the server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(what: str, root: Store, steps: int, server: Server | None = None) -> None:
    """Print a row of the table."""
    before = processor_time(server) if server else 0.0
    if server:
        server.forget()
    begin, started = time.perf_counter(), time.process_time()
    found = find_status(root, "2.14")
    used, taken = time.process_time() - started, time.perf_counter() - begin
    assert found.looked_at == steps
    serving = f"{processor_time(server) - before:.2f}" if server else "-"
    requests = f"{len(server.requests()):,}" if server else "-"
    print(f"| {what} | {steps:,} | {taken:.2f} | {used:.2f} | {serving} | {requests} |", flush=True)


def main() -> None:
    """Measure and print."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    content = metadata(10, 4)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| where | steps | wall s | processor s | processor s of the server | requests |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for step in range(steps):
            (root / "run" / f"step-{step}").mkdir(parents=True)
            (root / "run" / f"step-{step}" / ".metadata").write_bytes(content)
        measure("folder", open_store(str(root / "run")), steps)
        with s3_server(root / "log") as server:
            os.environ.update(server.variables())
            system = fsspec.filesystem("s3")
            system.mkdir("bucket")
            run = {f"bucket/run/step-{step}/.metadata": content for step in range(steps)}
            system.pipe(run)
            measure("S3 on loopback", open_store("s3://bucket/run"), steps, server)


if __name__ == "__main__":
    main()
