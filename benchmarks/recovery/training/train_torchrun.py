"""The workload under torchrun: DistributedDataParallel, restarted from its latest checkpoint."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.recovery.marks import ENTER, READY, MarkLog, folder
from benchmarks.recovery.settings import CHECKPOINT_EVERY, GLOO_TIMEOUT, STEPS
from benchmarks.recovery.training.workload import Workload, seed_rank

KEPT = 2  # checkpoints


def main() -> None:
    """Train, from the newest checkpoint if there is one."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=GLOO_TIMEOUT))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    work = Workload.build()
    seed_rank(rank)
    first = resume(work, rank, world_size)
    network = DistributedDataParallel(work.model)
    log = MarkLog()
    log.write(READY, rank, first)
    for n in range(first, STEPS):
        loss = work.loss(network, work.sampler.share(n, rank, world_size))
        log.write(ENTER, rank, n)
        loss.backward()  # exchanges gradients while it computes them
        work.optimizer.step()
        work.optimizer.zero_grad()
        work.mark_commit(log, rank=rank, step=n, members=world_size)
        if (n + 1) % CHECKPOINT_EVERY == 0:
            save(work, n + 1, rank)


def save(work: Workload, step: int, rank: int) -> None:
    """Write this rank's part of a checkpoint, whole or not at all."""
    place = folder() / "checkpoints" / f"{step:08d}"
    place.mkdir(parents=True, exist_ok=True)
    part: dict[str, Any] = {"random": torch.get_rng_state()}
    if rank == 0:
        part |= {"model": work.model.state_dict(), "optimizer": work.optimizer.state_dict()}
    torch.save(part, place / f"{rank}.part")
    (place / f"{rank}.part").rename(place / f"{rank}.pt")
    if rank == 0:
        for old in sorted(place.parent.iterdir())[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def resume(work: Workload, rank: int, world_size: int) -> int:
    """Load the newest checkpoint that all ranks completed; return the step to go on with."""
    places = sorted((folder() / "checkpoints").glob("*"))
    complete = [place for place in places if _is_complete(place, world_size)]
    if not complete:
        return 0
    shared = torch.load(complete[-1] / "0.pt")
    work.model.load_state_dict(shared["model"])
    work.optimizer.load_state_dict(shared["optimizer"])
    torch.set_rng_state(torch.load(complete[-1] / f"{rank}.pt")["random"])
    return int(complete[-1].name)


def _is_complete(place: Path, world_size: int) -> bool:
    return all((place / f"{rank}.pt").exists() for rank in range(world_size))


if __name__ == "__main__":
    main()
