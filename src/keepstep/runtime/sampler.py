"""Which samples a rank uses in a step: a pure function of seed, step, rank and world size.

A sampler without a position cannot lose one. The global batch of a step is fixed; ranks share it,
whatever their number, so a job that shrinks or grows still uses each sample of a step exactly once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sampler:
    """Shuffled samples ``0 .. size-1``, a new order each epoch, ``global_batch`` of them a step.

    Epochs follow each other without a gap: a batch may end one and begin the next.

    Raises:
        ValueError: a size or a batch below 1.

    Example:
        >>> sampler = Sampler(size=10, global_batch=4, seed=0)
        >>> parts = [sampler.share(0, rank, 3) for rank in range(3)]
        >>> sorted(sum(parts, [])) == sorted(sampler.share(0, 0, 1))
        True
    """

    size: int
    global_batch: int
    seed: int = 0
    _orders: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if self.size < 1 or self.global_batch < 1:
            raise ValueError(
                f"Sampler(size={self.size}, global_batch={self.global_batch}): wanted 1 or more"
            )

    def positions(self, step: int, rank: int, world_size: int) -> range:
        """Return the rank's share of ``step`` as positions in the endless stream of samples."""
        start = step * self.global_batch
        return range(
            start + self.global_batch * rank // world_size,
            start + self.global_batch * (rank + 1) // world_size,
        )

    def share(self, step: int, rank: int, world_size: int) -> list[int]:
        """Return the rank's share of step ``step`` as sample numbers."""
        positions = self.positions(step, rank, world_size)
        return [self._order(p // self.size)[p % self.size] for p in positions]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(self.size))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            while len(self._orders) >= 2:  # a batch touches two epochs at most, or many tiny ones
                self._orders.pop(min(self._orders))
            self._orders[epoch] = order
        return self._orders[epoch]
