"""A small GPT on the bytes of its own source, tensor parallel: parallelize_module.

torchrun --nproc-per-node 2 jobs/tensor.py --steps 20 --backend gloo

With --checkpoint DIR it saves at the end; with --resume as well it goes on from what is there, and
leaves it as it is. The same arguments give the same losses, bit for bit, and a resumed run has the
losses that a longer one would have had.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, BATCH = 256, 64, 128, 2, 4, 8


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, their matrices named one by one."""

    def __init__(self) -> None:
        """Create the layers."""
        super().__init__()
        self.norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of ``x``: (batch, CONTEXT, WIDTH)."""
        seen = self.norm(x)
        query, key, value = (  # of the heads of this rank
            each(seen).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        fed: torch.Tensor = self.down(functional.gelu(self.up(self.feed_norm(x))))
        return x + fed


def main() -> None:
    """Train."""
    options = parse()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
    torch.use_deterministic_algorithms(True)
    device = begin(options.backend, options.device_id)
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    blocks = [Block() for _ in range(LAYERS)]
    ends = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    model = nn.Sequential(ends[0], *blocks, ends[1]).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    plan = {
        **dict.fromkeys(("query", "key", "value", "up"), parallel.ColwiseParallel()),
        **dict.fromkeys(("out", "down"), parallel.RowwiseParallel()),
    }
    for block in blocks:
        parallel.parallelize_module(block, mesh, plan)
    # One by one: embedding and norms are plain tensors, which do not mix with DTensors in a batch.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    first = load(options.checkpoint, model, optimizer) if options.resume else 0
    for step in range(first, first + options.steps):
        text = batch(step, options.seed).to(device)  # the same on every rank
        logits = model(text[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.6f}", flush=True)
    if options.checkpoint and not options.resume:
        save(options.checkpoint, model, optimizer, first + options.steps)
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="of this run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device-id", choices=("given", "none", "late"), default="given")
    parser.add_argument("--checkpoint", metavar="DIR", help="save here at the end")
    parser.add_argument("--resume", action="store_true", help="go on from there")
    return parser.parse_args()


def begin(backend: str, device_id: str) -> torch.device:
    """Initialise the process group; return this rank's device, a GPU for the NCCL backends.

    The device is bound to the group (given), only set before it is made (none), or after it (late).
    """
    if "nccl" not in backend:
        dist.init_process_group(backend)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if device_id != "late":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if device_id == "given" else None)
    torch.cuda.set_device(device)
    return device


def batch(step: int, seed: int) -> torch.Tensor:
    """Return the bytes (BATCH, CONTEXT + 1) of one step; they depend on nothing else."""
    source = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1009)
    starts = torch.randint(len(source) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([source[i : i + CONTEXT + 1] for i in starts.tolist()]).long()


def save(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Save model, optimizer and the number of the next step."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)


def load(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load them in place; return the number of the next step."""
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(state["step"])


if __name__ == "__main__":
    main()
