"""What every system trains: the GPT of jobs/bytelm.py, on the same samples in the same order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from benchmarks.recovery.marks import COMMIT, MarkLog
from benchmarks.recovery.settings import CHECKED_STEP, SEED
from jobs.bytelm import ByteGPT, Size, cut, read_corpus
from keepstep.runtime.sampler import Sampler


@dataclass(kw_only=True, slots=True)
class Workload:
    """Model, optimizer and data of one process."""

    model: ByteGPT
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    corpus: torch.Tensor
    size: Size

    @classmethod
    def build(cls) -> Workload:
        """Return it as it is before the first step: equal in all processes."""
        torch.manual_seed(SEED)
        size, corpus = Size(), read_corpus()
        model = ByteGPT(size)
        samples = (len(corpus) - 1) // size.context
        return cls(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            sampler=Sampler(size=samples, global_batch=size.batch, seed=SEED),
            corpus=corpus,
            size=size,
        )

    def loss(self, network: nn.Module, samples: list[int]) -> torch.Tensor:
        """Return the mean loss of ``network`` (the model, wrapped or not) on some samples."""
        text = cut(self.corpus, samples, self.size.context)
        logits = network(text[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    def mark_commit(self, log: MarkLog, *, rank: int, step: int, members: int) -> None:
        """Write that ``step`` is done; in the step that is compared, with the state's digest."""
        digest = digest_of(self.model) if step == CHECKED_STEP else ""
        log.write(COMMIT, rank, step, members, digest)


def seed_rank(rank: int) -> None:
    """Let dropout differ from rank to rank, as jobs/bytelm.py does."""
    torch.manual_seed(SEED + 1 + rank)


def digest_of(model: nn.Module) -> str:
    """Return the SHA-256 of names and contents of a model's state."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()
