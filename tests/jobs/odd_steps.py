"""Steps in which rank 1 is lost, once, where it is hard to undo: ``odd_steps.py FOLDER MODE``.

``late``: it draws random numbers after its last collective in each third step, and is lost in the
third of these, when the others have completed the step. ``hidden``: the others keep the exception
of their collective to themselves. ``data``: all have written parameters through ``.data`` before
the last collective.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import keepstep

LOST_IN = 8
folder, mode = Path(sys.argv[1]), sys.argv[2]
completed, lost = folder / "completed", folder / "lost"

job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(100 + job.rank)


def be_lost() -> None:
    """End this process."""
    lost.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def is_time_to_be_lost(n: int) -> bool:
    """Whether this rank is to be lost in step ``n``."""
    return n == LOST_IN and job.rank == 1 and not lost.exists()


def compute() -> None:
    """Leave gradients that depend on the rank's random generator."""
    model(torch.randn(8, 64)).square().mean().backward()


def late(n: int) -> None:
    """Change the generator of rank 1 after the last collective."""
    if n == LOST_IN + 1 and job.rank == 0:
        completed.touch()
    compute()
    job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    if n % 3 == 2 and job.rank == 1:
        if is_time_to_be_lost(n):
            while not completed.exists():
                time.sleep(0.001)
            be_lost()
        torch.rand(5)


def hidden(n: int) -> None:
    """Leave a batch out when something is wrong with it."""
    compute()
    if is_time_to_be_lost(n):
        be_lost()
    try:
        job.average_gradients(model)
    except RuntimeError as error:
        print(f"step {n} left out: {error}", flush=True)
        optimizer.zero_grad()
        return
    optimizer.step()
    optimizer.zero_grad()


def data(n: int) -> None:
    """Write an optimizer by hand."""
    compute()
    job.average_gradients(model)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.01)
        parameter.grad = None
    if n == LOST_IN:
        (folder / f"written-by-{job.rank}").touch()
    if is_time_to_be_lost(n):
        while not all((folder / f"written-by-{rank}").exists() for rank in (0, 2)):
            time.sleep(0.001)
        be_lost()
    with job.collective():
        dist.all_reduce(torch.ones(1))


state = keepstep.State({"model": model, "optimizer": optimizer})
job.train({"late": late, "hidden": hidden, "data": data}[mode], state, steps=14)
