"""What the probe costs a job: interleaved pairs with and without it, the job takes the time itself.

python -m benchmarks.probe --pairs 5

Prints the ratio of the median step with the probe to that without, of the first ten steps (whose
inputs and gradients are looked at) and of the others, and what a run takes longer as a whole. The
processor time means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOKED_AT, WARM_UP = 10, 3  # steps
FIRST, OTHERS, RUN = "steps 4 to 10", "other steps", "whole run"
FIRST_CPU, OTHERS_CPU = f"processor time of {FIRST}", f"processor time of {OTHERS}"
NAMES = (FIRST, OTHERS, FIRST_CPU, OTHERS_CPU, RUN)


def main() -> None:
    """Measure, or be the job that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        train(options.steps)
        return
    ratios: dict[str, list[float]] = {name: [] for name in NAMES}
    longer = []
    for pair in range(options.pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        times = {probed: measure(options.ranks, options.steps, probed=probed) for probed in order}
        for name, found in ratios.items():
            found.append(times[True][name] / times[False][name])
        longer.append(times[True][RUN] - times[False][RUN])
        print(json.dumps({"pair": pair, "without": times[False], "with": times[True]}), flush=True)
    for name, found in ratios.items():
        low, high = min(found), max(found)
        print(f"{name}: {statistics.median(found):.3f} ({low:.3f} to {high:.3f})")
    print(f"a run is longer by {statistics.median(longer):.2f} s")


def measure(ranks: int, steps: int, *, probed: bool) -> dict[str, float]:
    """Run the job once; return the medians of the slowest rank and the time of the run."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        words = ["-m", "keepstep.probe", "--record", folder] if probed else []
        command = [sys.executable, *words, __file__, "--job", "--steps", str(steps)]
        began = time.perf_counter()
        started = [
            subprocess.Popen(command, env=variables(rank, ranks, port), stdout=subprocess.PIPE)
            for rank in range(ranks)
        ]
        said = [json.loads(each.communicate()[0].splitlines()[-1]) for each in started]
        seconds = time.perf_counter() - began
    return {**{name: max(each[name] for each in said) for name in said[0]}, RUN: seconds}


def variables(rank: int, ranks: int, port: str) -> dict[str, str]:
    """Return torchrun's variables for one rank."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    }


def train(steps: int) -> None:
    """Be the job: jobs/data_parallel.py with a clock around each step."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    from jobs.data_parallel import ByteGPT, batch

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = DistributedDataParallel(ByteGPT())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    times, processor = [], []
    for step in range(steps):
        began, before = time.perf_counter(), time.process_time()
        text = batch(step, 0, rank)
        logits = network(text[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
        processor.append(time.process_time() - before)
    dist.destroy_process_group()
    found = {
        FIRST: statistics.median(times[WARM_UP:LOOKED_AT]),
        OTHERS: statistics.median(times[LOOKED_AT:]),
        FIRST_CPU: statistics.median(processor[WARM_UP:LOOKED_AT]),
        OTHERS_CPU: statistics.median(processor[LOOKED_AT:]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
