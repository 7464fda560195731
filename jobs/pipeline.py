"""A small GPT on the bytes of its own source, a pipeline of two stages: 1F1B.

torchrun --nproc-per-node 2 jobs/pipeline.py --steps 20 --backend gloo

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
from torch.distributed.checkpoint import state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, BATCH = 256, 64, 128, 4, 4, 8
STAGES, MICROBATCHES = 2, 4
# Each entry under the name of its parameter, so that the stages' entries are apart in a checkpoint.
FLAT = state_dict.StateDictOptions(flatten_optimizer_state_dict=True)


class Stage(nn.Module):
    """One half of a GPT that predicts the next byte; both name their layers as the whole does."""

    def __init__(self, stage: int) -> None:
        """Create the layers of stage 0 or 1."""
        super().__init__()
        self.first, half = stage == 0, LAYERS // 2
        if self.first:
            self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict()
        for number in range(half) if self.first else range(half, LAYERS):
            self.blocks[str(number)] = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
            )
        self.head = nn.Identity() if self.first else nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what stage 1 wants for bytes (batch, CONTEXT), or the logits for that."""
        if self.first:
            x = self.bytes(x)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=x.device)
        for block in self.blocks.values():
            x = block(x, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(x)
        return logits


def main() -> None:
    """Train."""
    options = parse()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
    torch.use_deterministic_algorithms(True)
    device = begin(options.backend, options.device_id)
    rank = dist.get_rank()
    torch.manual_seed(options.seed + rank)
    if dist.get_world_size() != STAGES:
        raise ValueError(f"{dist.get_world_size()} ranks; wanted {STAGES}, one for each stage")
    model = Stage(rank).to(device)
    stage = PipelineStage(model, rank, STAGES, device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = load(options.checkpoint, model, optimizer) if options.resume else 0
    for step in range(first, first + options.steps):
        text = batch(step, options.seed).to(device)  # the same on both
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(text[:, :-1].contiguous())  # a stage checks strides too
        else:
            schedule.step(target=text[:, 1:], losses=losses)
            loss = torch.stack(losses).mean().item()
            print(f"rank {rank} step {step} loss {loss:.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
    if options.checkpoint and not options.resume:
        save(options.checkpoint, model, optimizer, first + options.steps)
    dist.destroy_process_group()


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a microbatch."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


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
    weights, moments = state_dict.get_state_dict(model, optimizer, options=FLAT)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)


def load(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load them in place; return the number of the next step."""
    weights, moments = state_dict.get_state_dict(model, optimizer, options=FLAT)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    state_dict.set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=FLAT
    )
    return int(state["step"])


if __name__ == "__main__":
    main()
