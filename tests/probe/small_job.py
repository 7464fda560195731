"""A job of a few steps that does a little of everything the probe looks at."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.distributed import (
    ProcessGroup,
    all_reduce,
    destroy_process_group,
    init_process_group,
    new_group,
)

STEPS, BATCH, WIDTH = 12, 4, 8
OWN_SLEEP = 0.02  # seconds, in each step


class Model(nn.Module):
    """Takes its input by name, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, *, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(rows)
        return made


def main(folder: str) -> None:
    init_process_group(backend="gloo")
    pair = new_group([0, 1], backend="gloo")
    assert isinstance(pair, ProcessGroup)
    rank = int(os.environ["RANK"])
    asked = _note_sleeps()
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(rows=torch.ones(100, WIDTH))  # an evaluation: no data of a step
    for step in range(STEPS):
        for part in range(2):  # microbatches
            rows = torch.full((BATCH, WIDTH), step + part + rank + 1.0)
            model(rows=rows).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            all_reduce(parameter.grad)
            parameter.grad /= 1000
        time.sleep(OWN_SLEEP)
        optimizer.step()
        optimizer.zero_grad()
    all_reduce(torch.ones(256), group=pair)
    torch.save(model.state_dict(), f"{folder}/model-{rank}.pt")
    torch.load(f"{folder}/model-{rank}.pt")
    warnings.warn(f"object at {hex(id(model))}", stacklevel=1)
    logging.getLogger("torch.distributed").warning("slow after %s seconds", time.monotonic())
    Path(folder, f"sleeps-{rank}.json").write_text(json.dumps(asked))
    print("first random number", torch.rand(()).item())
    destroy_process_group()


def _note_sleeps() -> list[float]:
    """Note how long this process is asked to sleep, by whomever, from now on."""
    asked: list[float] = []
    sleep = time.sleep

    def noted(seconds: float) -> None:
        asked.append(seconds)
        sleep(seconds)

    time.sleep = noted  # type: ignore[assignment]  # its name is no part of what it takes
    return asked


if __name__ == "__main__":
    main(sys.argv[1])
