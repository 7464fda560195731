"""Ranks whose shares of a step differ in size: ``uneven.py ddp|average``; prints the result."""

from __future__ import annotations

import sys

import torch

import keepstep

job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.randn(64, 4)
wanted = samples.sum(1, keepdim=True) + torch.arange(64)[:, None] / 8
sampler = keepstep.Sampler(64, global_batch=10)
is_ddp = sys.argv[1] == "ddp"
network = job.data_parallel(model) if is_ddp else model


def step(n: int) -> None:
    mine = job.share(sampler, n)
    torch.nn.functional.mse_loss(network(samples[mine]), wanted[mine]).backward()
    if not is_ddp:
        job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


job.train(step, keepstep.State(replicated={"model": model, "optimizer": optimizer}), steps=12)
if job.rank == 0:
    learned = sum(float(parameter.detach().sum()) for parameter in model.parameters())
    sys.stdout.write(f"learned {learned:.6f}\n")  # at once: others write there too
