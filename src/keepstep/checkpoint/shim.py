"""Lets PyTorch 2.4 to 2.14 load checkpoints that PyTorch 2.15 wrote. An emergency exit.

Written by `keepstep checkpoint shim`. Put the folder of this file, named sitecustomize.py, first in
PYTHONPATH of every rank; nothing else of the image changes. Python runs it when it starts. When
PyTorch's TensorProperties is imported, it learns to leave out the sixth field (strides), which no
loader reads. Newer versions, and older checkpoints, are not affected.

What it does not do: it changes no checkpoint, so every process that loads needs it, and a load
without it can silently take the metadata of another save (`__0.metadata`). Go back to checkpoints
that need no shim as soon as the job runs: `keepstep checkpoint downgrade`, or the next save, which
this version writes in its own form.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import Any

# Both hold a TensorProperties: of a checkpoint, and of a ShardedTensor inside a pickled object.
_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed._shard.sharded_tensor.metadata",
)
_OLD_FIELDS, _NEW_FIELDS = 5, 6

_said = False


class Finder:
    """Finds the two modules as Python does, and lets their loader teach the class."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return None for every other module."""
        if name not in _MODULES:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = Loader(spec.loader)
        return spec


class Loader:
    """Loads a module as its own loader does, then teaches the class in it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Return what the module's own loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module, then teach its class."""
        self._loader.exec_module(module)
        if hasattr(module, "TensorProperties"):
            teach(module.TensorProperties)


def teach(kind: Any) -> None:
    """Let TensorProperties without strides accept the state of one with strides."""
    if "strides" in kind.__dataclass_fields__:
        return
    own = kind.__setstate__

    def __setstate__(self: Any, state: Any) -> None:
        if len(state) == _NEW_FIELDS:
            state = state[:_OLD_FIELDS]
            _say()
        own(self, state)

    kind.__setstate__ = __setstate__


def _say() -> None:
    global _said
    if not _said:
        _said = True
        print(
            "keepstep: reading a checkpoint of PyTorch 2.15 with the help of " + __file__,
            file=sys.stderr,
        )


def run_next() -> None:
    """Run the sitecustomize of the image, which this one stands in front of."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = type(sys)("sitecustomize")
        module.__file__ = spec.origin
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder)
    run_next()
