"""One of two ranks that train a small model with FSDP2 and AdamW, with the PyTorch that runs it.

    python resume.py RANK RENDEZVOUS STEPS [--load FOLDER [--without-optimizer]] [--save FOLDER ...]

A script, and keepstep is needed for ``--save old:FOLDER`` alone, which saves what older versions
read. It prints one line of JSON: the loss of each step, its mean over both ranks, as an exact
hexadecimal number, and a digest of this rank's shards before the first step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, BATCH = 64, 8


def model() -> nn.Sequential:
    """Return a transformer block between two linear layers, sharded in three groups."""
    torch.manual_seed(1)
    whole = nn.Sequential(
        nn.Linear(17, WIDTH),
        nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 5),  # five rows: the shards of the two ranks differ in size
    )
    mesh = init_device_mesh("cpu", (2,))
    for part in (whole[1], whole[3]):
        fully_shard(part, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of a step: the same ones whoever asks, and whenever."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, 6, 17, generator=source)
    return inputs, inputs.cumsum(1)[..., :5].tanh()


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("rendezvous")
    parser.add_argument("steps", type=int)
    parser.add_argument("--load")
    parser.add_argument("--without-optimizer", action="store_true")
    parser.add_argument("--save", action="append", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = dist.FileStore(arguments.rendezvous, 2)
    limit = timedelta(seconds=600)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=2, timeout=limit)

    whole = model()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1)
    first = 0
    if arguments.load:
        first = load(whole, optimizer, arguments.load, not arguments.without_optimizer)
    digest = digest_of(whole, optimizer)
    losses = []
    for step in range(first, first + arguments.steps):
        inputs, wanted = batch(step, arguments.rank)
        loss = nn.functional.mse_loss(whole(inputs), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append((mean.item() / 2).hex())
    for place in arguments.save:
        save(whole, optimizer, first + arguments.steps, place)
    dist.destroy_process_group()
    return {"torch": torch.__version__, "losses": losses, "digest": digest}


def load(whole: nn.Module, optimizer: torch.optim.Optimizer, folder: str, with_state: bool) -> int:
    """Load a checkpoint as a trainer does; returns the step to go on with."""
    model_state, optimizer_state = get_state_dict(whole, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    if not with_state:
        state["optimizer"] = optimizer_state_of_a_beginner(whole)
    set_state_dict(
        whole,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    step: int = state["step"]
    return step


def optimizer_state_of_a_beginner(whole: nn.Module) -> Any:
    """Return the state of an optimizer that has made no step."""
    return get_state_dict(whole, torch.optim.AdamW(whole.parameters(), lr=1e-2))[1]


def save(whole: nn.Module, optimizer: torch.optim.Optimizer, step: int, place: str) -> None:
    """Save, in the form of older versions where ``place`` begins with ``old:``."""
    model_state, optimizer_state = get_state_dict(whole, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": step}
    form, _, folder = place.rpartition(":")
    if form == "old":
        from keepstep.checkpoint import writer

        dcp.save(state, storage_writer=writer(folder))
    else:
        dcp.save(state, checkpoint_id=folder)


def digest_of(whole: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a SHA-256 over this rank's shards of parameters and of the optimizer's state."""
    found = hashlib.sha256()
    for parameter in whole.parameters():
        state = optimizer.state.get(parameter, {})
        for value in (parameter, *(state[name] for name in sorted(state))):
            local = value.to_local() if hasattr(value, "to_local") else value
            found.update(local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    answer = json.dumps(main())
    sys.stdout.write(answer + "\n")
