"""The checkpoint boundary: which PyTorch can read a distributed checkpoint, and how to go back.

Nothing that a checkpoint says is executed here, and torch is imported by two modules only:
``probe``, which runs in the environment that is asked about, and ``writer_old``, the API of a
training script. The names of the API are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.checkpoint.protected import is_protected
    from keepstep.checkpoint.writer_old import write_old_format, writer

__all__ = ["is_protected", "write_old_format", "writer"]

_HOME = {"is_protected": "protected", "write_old_format": "writer_old", "writer": "writer_old"}


def __getattr__(name: str) -> Any:
    """Load a name of the API when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'keepstep.checkpoint' has no attribute {name!r}")
    return getattr(import_module(f"keepstep.checkpoint.{_HOME[name]}"), name)
