"""What evidence costs a survivor: ``python -m benchmarks.testify [--rounds N]``.

When a rank dies, the side thread of each survivor writes the recorder's dump and the stacks of all
threads before it unblocks the training thread. This times that one call in a process of its own,
for several sizes of the recorder's buffer, all of them full.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SIZES = (64, 256, 1000, 2000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each size in a fresh process; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testify", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(*measure(options.rounds))
        return 0
    print("| entries in the buffer | median (ms) | 90th percentile (ms) | greatest (ms) |")
    print("|---|---|---|---|")
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.testify", "--one", "--rounds", str(options.rounds)],
            env={**os.environ, "TORCH_FR_BUFFER_SIZE": str(size)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        times = sorted(float(text) * 1000 for text in done.stdout.split())
        high = times[int(len(times) * 0.9)]
        print(f"| {size} | {statistics.median(times):.1f} | {high:.1f} | {times[-1]:.1f} |")
    return 0


def measure(rounds: int) -> list[float]:
    """Return the seconds of each call, with a full recorder and four threads."""
    import threading

    import torch
    import torch.distributed as dist

    from keepstep.runtime.witness import testify

    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    tensor = torch.zeros(1024)
    for _ in range(max(SIZES) + 100):
        dist.all_reduce(tensor)
    for _ in range(3):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    times = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(rounds):
            began = time.perf_counter()
            testify(Path(folder), 0, number, "gloo")
            times.append(time.perf_counter() - began)
    sys.stdout.flush()
    return times


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait in native code would abort an orderly end
