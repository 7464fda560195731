"""What a script asks for when it wants checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass

from keepstep.checkpoint.eras import MINORS, minor_of, not_older

OLDEST_WRITTEN = "2.4"  # the oldest form that can be written; older ones need a downgrade


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where ``Job.train`` saves its state, how often, and for whom.

    Args:
        path: a folder of this machine, or one that all hosts of the job share.
        every: steps from one save to the next; the last step is always saved.
        keep: how many checkpoints stay, besides those that a rollback window protects; older ones
            are removed as by ``keepstep checkpoint prune``. None: all stay.
        readable_by: the oldest PyTorch that must be able to load them, "2.4" or newer, for as long
            as you may go back to it. None: the one that runs.

    Raises:
        ValueError: a number below 1, an address instead of a folder, or a version that cannot be
            written.
    """

    path: str | os.PathLike[str]
    every: int
    keep: int | None = None
    readable_by: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.every < 1 or (self.keep is not None and self.keep < 1):
            raise ValueError(
                f"Checkpoint(every={self.every}, keep={self.keep}): 1 or more is wanted"
            )
        if "://" in os.fspath(self.path):
            raise ValueError(
                f"Checkpoint({os.fspath(self.path)!r}): a folder is wanted, on a file system that "
                "all hosts share; copy finished step folders to an object store from there"
            )
        if self.readable_by is not None:
            minor = minor_of(self.readable_by)
            if not not_older(minor, OLDEST_WRITTEN):
                raise ValueError(
                    f"Checkpoint(readable_by={self.readable_by!r}): {OLDEST_WRITTEN} is the oldest "
                    f"that can be written for; then: keepstep checkpoint downgrade --for {minor}"
                )

    @property
    def old_form(self) -> bool:
        """Whether a version older than 2.15 must be able to read them."""
        return self.readable_by is not None and minor_of(self.readable_by) != MINORS[-1]
