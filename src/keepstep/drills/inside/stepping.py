"""A small training job for drills under ``keepstep run``: a perceptron that learns a fixed map.

Each sample is made from its number, so nothing needs to be read and every run sees the same data.
It uses the Python API of keepstep, as any script of ``keepstep run`` does.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import keepstep

_WIDTH, _SAMPLES, _BATCH = 256, 4096, 96


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    job = keepstep.join()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    model = nn.Sequential(
        nn.Linear(_WIDTH, 4 * _WIDTH),
        nn.GELU(),
        nn.Dropout(0.1),  # uses the random generator of its rank: it must survive the rank
        nn.Linear(4 * _WIDTH, _WIDTH),
    ).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = keepstep.Sampler(size=_SAMPLES, global_batch=_BATCH, seed=options.seed)
    state = keepstep.State(replicated={"model": model, "optimizer": optimizer})
    torch.manual_seed(options.seed + 1 + job.rank)

    def step(n: int) -> None:
        samples = torch.tensor(job.share(sampler, n), device=job.device)
        places = torch.arange(_WIDTH, device=job.device)
        given = torch.sin(samples[:, None] * 0.37 + places * 0.11)
        loss = nn.functional.mse_loss(model(given), given.roll(1, dims=1))
        loss.backward()
        job.average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

    job.train(step, state, steps=options.steps)


if __name__ == "__main__":
    main()
