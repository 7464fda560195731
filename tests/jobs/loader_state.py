"""A job whose per-rank state is rebuilt for the rank that the process has just got."""

from __future__ import annotations

import torch

import keepstep


class Loader:
    """The share of the next step, taken in advance."""

    def __init__(self) -> None:
        self.step, self.share = 0, [0]

    def advance(self, step: int) -> list[int]:
        mine = self.share if step == self.step and step else job.share(sampler, step)
        self.step, self.share = step + 1, job.share(sampler, step + 1)
        return mine

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]
        self.share = job.share(sampler, self.step)  # needs the rank: that of a spare raises


job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.randn(64, 4)
sampler, loader = keepstep.Sampler(64, global_batch=10), Loader()


def step(n: int) -> None:
    mine = loader.advance(n)
    model(samples[mine]).mean().backward()
    job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


state = keepstep.State(
    replicated={"model": model, "optimizer": optimizer}, per_rank={"loader": loader}
)
job.train(step, state, steps=16)
