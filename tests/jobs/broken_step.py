"""A job whose step 3 raises on every rank, whatever process has it."""

from __future__ import annotations

import torch

import keepstep

job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(n: int) -> None:
    """Fail at step 3."""
    model(torch.ones(2, 4)).sum().backward()
    if n == 3 and job.rank == 1:
        raise ValueError("this sample cannot be read")
    job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


job.train(step, keepstep.State(replicated={"model": model, "optimizer": optimizer}), steps=6)
