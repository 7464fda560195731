"""A small job whose ranks are killed while they write their part of a checkpoint, once each.

keepstep run ... tests/jobs/dies_while_saving.py FOLDER STEPS RANK@STEP ...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import torch

import keepstep
from keepstep.runtime import saving

folder, steps, plan = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
own = saving.write_share


def write_share(share: saving.Share) -> None:
    """Die if that is planned and has not happened yet."""
    death = f"{share.rank}@{share.step}"
    mark = folder.with_name(f"died-{death}")
    if death in plan and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    own(share)


saving.write_share = write_share
job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
sampler = keepstep.Sampler(1000, 12)
state = keepstep.State(replicated={"model": model, "optimizer": optimizer})
torch.manual_seed(1 + job.rank)


def step(n: int) -> None:
    """Train on noise, so that the generators matter, when the last save is over."""
    for thread in threading.enumerate():
        if thread.name == "keepstep-checkpoint":
            thread.join(0.5)  # its end may be that of another rank
    rows = torch.randn(len(job.share(sampler, n)), 64)
    model(rows).square().mean().backward()
    job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


job.train(step, state, steps=steps, checkpoint=keepstep.Checkpoint(folder, every=2))
