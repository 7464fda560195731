"""A job whose rank 2 is lost in step 5 when rank 0 has completed that step and no other rank has.

    keepstep run --workers N --spares 1 tests/jobs/split.py FOLDER [FLIPPED]

One bit of rank FLIPPED changes at the beginning of the step that it does not complete.
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
from keepstep.runtime.bit_flip import flip_bit

LOST, SPLIT_AT = 2, 5
ahead, lost = (Path(sys.argv[1]) / name for name in ("ahead", "lost"))
flipped = int(sys.argv[2]) if len(sys.argv) > 2 else -1

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True)
job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).to(job.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = keepstep.State({"model": model, "optimizer": optimizer})


def begin(n: int) -> None:
    """Flip the bit; tell the others that rank 0 has left them behind."""
    if lost.exists():
        return
    if job.rank == flipped and n == (SPLIT_AT + 1 if flipped == 0 else SPLIT_AT):
        flip_bit(state)
    if job.rank == 0 and n == SPLIT_AT + 1:
        ahead.touch()


def wait_for_the_lost_rank() -> None:
    """Be lost, as rank 2; as another one be left in the middle of the step."""
    if job.rank == LOST:
        while not ahead.exists():
            time.sleep(0.001)
        lost.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with job.collective():
        word = torch.empty(1, device=job.device)
        dist.recv(word, src=LOST)
        word.item()  # NCCL returns before it has received


def step(n: int) -> None:
    """Train on noise of the rank's own."""
    is_first_time = not lost.exists()
    begin(n)
    noise = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * n + job.rank))
    model(noise.to(job.device)).square().mean().backward()
    job.average_gradients(model)
    if n == SPLIT_AT and job.rank != 0 and is_first_time:
        wait_for_the_lost_rank()
    optimizer.step()
    optimizer.zero_grad()


job.train(step, state, steps=12)
