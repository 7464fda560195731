"""A small GPT that learns to write Python: trained on the bytes of the standard library's sources.

keepstep run --workers 3 --spares 1 jobs/bytelm.py --steps 120 --seed 0
torchrun --nproc-per-node 3 jobs/bytelm.py --steps 120 --seed 0

With --checkpoint DIR --every N it saves as it goes and begins where the last run ended.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import keepstep

VOCABULARY = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Dimensions of the model and of a batch."""

    width: int = 96
    heads: int = 4
    layers: int = 3
    context: int = 96  # bytes that one sample holds
    batch: int = 12  # samples of a step, over all ranks


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer."""

    def __init__(self, size: Size) -> None:
        """Create the layers."""
        super().__init__()
        self.heads = size.heads
        self.before_attention = nn.LayerNorm(size.width)
        self.mix = nn.Linear(size.width, 3 * size.width)
        self.project = nn.Linear(size.width, size.width)
        self.feed = nn.Sequential(
            nn.LayerNorm(size.width),
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(0.1),  # uses the random generator of its rank: it must survive the rank
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of ``x``: (batch, context, width)."""
        batch, length, width = x.shape
        mixed = self.mix(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        fed: torch.Tensor = self.feed(x)
        return x + fed


class ByteGPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, size: Size) -> None:
        """Create the layers."""
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.last_norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, context, 256) for bytes (batch, context)."""
        places = torch.arange(text.shape[1], device=text.device)
        x = self.bytes(text) + self.places(places)
        logits: torch.Tensor = self.head(self.last_norm(self.blocks(x)))
        return logits


def read_corpus(megabytes: float = 4.0) -> torch.Tensor:
    """Return the bytes of the standard library's modules, in order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    limit, total, parts = int(megabytes * 2**20), 0, []
    for path in sorted(folder.glob("*.py")):
        part = path.read_bytes()
        parts.append(part)
        total += len(part)
        if total >= limit:
            break
    return torch.frombuffer(bytearray(b"".join(parts)[:limit]), dtype=torch.uint8)


def cut(corpus: torch.Tensor, samples: list[int], context: int) -> torch.Tensor:
    """Return the samples as integers (number of samples, context + 1)."""
    rows = [corpus[i * context : i * context + context + 1] for i in samples]
    return torch.stack(rows).long()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ddp", action="store_true", help="use DistributedDataParallel")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="save here, and go on from there")
    parser.add_argument("--every", type=int, default=20, help="steps from one save to the next")
    parser.add_argument("--keep", type=int, help="how many checkpoints stay (all)")
    parser.add_argument("--readable-by", metavar="VERSION", help="e.g. 2.14: may go back to it")
    options = parser.parse_args()

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
    job = keepstep.join()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    size = Size()
    corpus = read_corpus()
    model = ByteGPT(size).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = keepstep.Sampler(
        size=(len(corpus) - 1) // size.context, global_batch=size.batch, seed=options.seed
    )
    state = keepstep.State(replicated={"model": model, "optimizer": optimizer})
    network = job.data_parallel(model) if options.ddp else model
    torch.manual_seed(options.seed + 1 + job.rank)  # dropout differs from rank to rank

    def step(n: int) -> None:
        text = cut(corpus, job.share(sampler, n), size.context).to(job.device)
        logits = network(text[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        if not options.ddp:
            job.average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if job.rank == 0 and n % options.log_every == 0:
            print(f"step {n} loss {loss.item():.4f}", flush=True)

    def warm_up() -> None:
        text = torch.zeros((1, size.context), dtype=torch.long, device=job.device)
        model(text).sum().backward()

    checkpoint = None
    if options.checkpoint:
        checkpoint = keepstep.Checkpoint(
            options.checkpoint, options.every, options.keep, options.readable_by
        )
    job.train(step, state, steps=options.steps, warm_up=warm_up, checkpoint=checkpoint)


if __name__ == "__main__":
    main()
