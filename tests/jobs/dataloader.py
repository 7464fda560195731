"""A job with torch's DataLoader and its worker processes, as docs/run.md shows it."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import keepstep


class Batches:
    """This rank's batches: ``batches(n)`` is that of step ``n``."""

    def __init__(self, dataset: Dataset[Any], job: keepstep.Job, sampler: keepstep.Sampler) -> None:
        self.dataset, self.job, self.sampler = dataset, job, sampler
        self.expected: tuple[int, int] | None = None  # generation and step of the next batch

    def __call__(self, n: int) -> Any:
        if self.expected != (self.job.generation, n):
            rank, size = self.job.rank, self.job.world_size
            shares = (self.sampler.share(k, rank, size) for k in itertools.count(n))
            # Without a generator of its own each new iterator would draw from the rank's.
            loader: DataLoader[Any] = DataLoader(
                self.dataset, batch_sampler=shares, num_workers=2, generator=torch.Generator()
            )
            self.batches = iter(loader)
        self.expected = (self.job.generation, n + 1)
        self.job.share(self.sampler, n)  # noted, so that the summary proves that none was lost
        return next(self.batches)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()

    job = keepstep.join()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(512, 8)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    state = keepstep.State(replicated={"model": model, "optimizer": optimizer})
    batches = Batches(dataset, job, keepstep.Sampler(size=512, global_batch=13, seed=1))

    def step(n: int) -> None:
        features, wanted = batches(n)
        torch.nn.functional.mse_loss(model(features), wanted).backward()
        job.average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

    job.train(step, state, steps=options.steps)


if __name__ == "__main__":
    main()
