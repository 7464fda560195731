"""Acts on a module right after its code has run, before its importer sees it.

So the job itself decides when torch is imported, after it has set its variables, and still gets the
functions that the probe watches, also by ``from torch.distributed import all_reduce``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType, float], None]


class Finder:
    """Finds nothing by itself: takes what the other finders find and adds the action."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Action]] = {}
        self._asking: set[str] = set()

    def when_imported(self, name: str, action: Action) -> None:
        """Call ``action(module, seconds that its import took)`` once module ``name`` is there."""
        present = sys.modules.get(name)
        if present is not None:
            action(present, 0.0)
        else:
            self._actions.setdefault(name, []).append(action)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, its loader watched."""
        if name not in self._actions or name in self._asking:
            return None
        self._asking.add(name)
        try:
            found = _ask_the_others(self, name, path, target)
        finally:
            self._asking.discard(name)
        if found is not None and hasattr(found.loader, "exec_module"):
            self._watch(name, found.loader)
        return found

    def _watch(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            began = time.perf_counter()
            execute(module)
            seconds = time.perf_counter() - began
            for action in self._actions.pop(name, []):
                action(module, seconds)

        # On this loader object only: its class loads everything else too.
        loader.exec_module = exec_module


def _ask_the_others(
    own: Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = None if finder is own else getattr(finder, "find_spec", None)
        found: ModuleSpec | None = find(name, path, target) if find else None
        if found is not None:
            return found
    return None
