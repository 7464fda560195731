"""A job with parameters of two kinds; with ``raise`` the state of rank 1 cannot be read in step 5.

Once: another process in its place, or the same one later, can read it.
"""

from __future__ import annotations

import sys

import torch

import keepstep

job = keepstep.join()


class Place:
    """What rank 1 has difficulties with."""

    def __init__(self) -> None:
        self.step, self.failed = 0, sys.argv[1] != "raise" or job.rank != 1

    def state_dict(self) -> dict[str, int]:
        """Raise in step 5."""
        if self.step == 5 and not self.failed:
            self.failed = True
            raise OSError("the loader's process does not answer")
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go back to a step."""
        self.step = state["step"]


torch.manual_seed(0)
model = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, dtype=torch.double)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
place = Place()


def step(n: int) -> None:
    """Train on noise of the rank's own."""
    place.step = n
    noise = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * n + job.rank))
    (model[0](noise).square().mean() + model[1](noise.double()).square().mean()).backward()
    job.average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


state = keepstep.State({"model": model, "optimizer": optimizer}, per_rank={"place": place})
job.train(step, state, steps=12)
