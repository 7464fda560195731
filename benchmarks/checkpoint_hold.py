"""How long a save holds the training: ``python -m benchmarks.checkpoint_hold [--ranks N] ...``.

Ranks that train nothing else save the state of the byte model and its AdamW, in turns:

* ``Job.train``: what it does after a commit, up to the moment at which the next step may begin;
* ``dcp.save``: PyTorch's synchronous save;
* ``dcp.async_save``: PyTorch's asynchronous save (a thread), up to its return.

Each save is over on every rank before the next begins. Held is the longest of all ranks. While a
save is under way the rank computes steps of the model (one sample, forward and backward, nothing is
exchanged); the last column compares them with steps when nothing is saved.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

METHODS = ("Job.train", "dcp.save", "dcp.async_save")
WARM_UP = 2  # first saves of each method, which are not counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint_hold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--width", type=int, default=96, help="of the model; 96 as in jobs/bytelm")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to save (a temporary folder)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        print(json.dumps(measure(options)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        values = vars(options) | {"folder": Path(folder)}
        given = [f"--{name}={value}" for name, value in values.items() if name != "rank"]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.checkpoint_hold", *given, f"--rank={rank}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(options.ranks)
        ]
        answers = [json.loads(process.communicate()[0]) for process in ranks]
    report(answers, options)
    return 0


def report(answers: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print what all ranks say."""
    size = answers[0]["bytes"] / 1e6
    print(f"{options.ranks} ranks, {size:.1f} MB of state, {options.rounds} saves of each kind\n")
    print("| | held: median (ms) | greatest | processor time of the thread | saved after | steps |")
    print("|---|---|---|---|---|---|")
    for method in METHODS:
        held, busy, whole = (
            [max(values) * 1000 for values in zip(*(a[method][kind] for a in answers), strict=True)]
            for kind in ("held", "busy", "whole")
        )
        print(
            f"| {method} | {statistics.median(held):.1f} | {max(held):.1f} | "
            f"{statistics.median(busy):.1f} | {statistics.median(whole):.0f} | "
            f"{_slowdown(answers, method)} |"
        )


def _slowdown(answers: list[dict[str, Any]], method: str) -> str:
    """Return how much longer steps took while saves were under way, on the slowest rank."""
    found = []
    for answer in answers:
        alone = statistics.mean(answer["alone"])
        found += (
            [statistics.mean(answer[method]["steps"]) / alone] if answer[method]["steps"] else []
        )
    return f"x {max(found):.2f}" if found else "-"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Save in turns as one of the ranks; return seconds."""
    import torch
    import torch.distributed as dist

    from jobs.bytelm import ByteGPT, Size
    from keepstep.runtime.checkpoint_plan import Checkpoint
    from keepstep.runtime.checkpoints import Checkpoints
    from keepstep.runtime.state import State

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size, folder = options.rank, options.ranks, options.folder
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = ByteGPT(Size(width=options.width, layers=options.layers))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros((1, 8), dtype=torch.long)).sum().backward()
    optimizer.step()
    state = State(replicated={"model": model, "optimizer": optimizer})
    total = options.rounds + WARM_UP
    ours = Checkpoints(Checkpoint(folder / "ours", every=1), state, total + 1, lambda _: None)
    ours.begin(1, rank, list(range(size)), 0)

    def save(method: str, number: int) -> Callable[[], bool]:
        """Start a save; return what tells whether it is over."""
        if method == "Job.train":
            ours.committed(number + 1, state.capture_rank)
            return lambda: ours._save is None
        values = state.replicated_values()
        place = folder / method / str(number)
        if method == "dcp.save":
            torch.distributed.checkpoint.save(values, checkpoint_id=place)
            return lambda: True
        saving: Any = torch.distributed.checkpoint.async_save(values, checkpoint_id=place)
        done: Callable[[], bool] = saving.done
        return done

    def step() -> float:
        """Compute one step; return its seconds."""
        began = time.perf_counter()
        model(torch.zeros((1, 96), dtype=torch.long)).sum().backward()
        return time.perf_counter() - began

    times: dict[str, dict[str, list[float]]] = {
        method: {"held": [], "busy": [], "whole": [], "steps": []} for method in METHODS
    }
    alone = [step() for _ in range(60)][10:]
    for number in range(total):
        for method in METHODS:
            dist.barrier()
            began, busy = time.perf_counter(), time.thread_time()
            is_over = save(method, number)
            held, used = time.perf_counter() - began, time.thread_time() - busy
            steps = []
            while not is_over():
                steps.append(step())
            if number >= WARM_UP:
                times[method]["held"].append(held)
                times[method]["busy"].append(used)
                times[method]["whole"].append(time.perf_counter() - began)
                times[method]["steps"] += steps
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder / method, ignore_errors=True)
    tensors = state.encode_replicated().tensors
    return {"bytes": sum(tensor.nbytes for tensor in tensors), "alone": alone, **times}


if __name__ == "__main__":
    sys.exit(main())
