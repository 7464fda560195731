"""Keep every rank in step: through a bad GPU, a hang, or a bad release.

The API of a training script: ``join``, ``State``, ``Job``, ``Sampler`` and ``Checkpoint``. It
needs the standard library and torch, nothing else, and loads torch only when one of these names is
used: agent and coordinator live in this package too and must start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.runtime.checkpoint_plan import Checkpoint
    from keepstep.runtime.job import Job, join
    from keepstep.runtime.replicas import DataParallel
    from keepstep.runtime.sampler import Sampler
    from keepstep.runtime.state import State, Stateful

__all__ = ["Checkpoint", "DataParallel", "Job", "Sampler", "State", "Stateful", "join"]

_HOMES = {
    "Checkpoint": "checkpoint_plan",
    "DataParallel": "replicas",
    "Job": "job",
    "Sampler": "sampler",
    "State": "state",
    "Stateful": "state",
    "join": "job",
}


def __getattr__(name: str) -> Any:
    """Load a name of the API when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'keepstep' has no attribute {name!r}")
    return getattr(import_module(f"keepstep.runtime.{_HOMES[name]}"), name)
