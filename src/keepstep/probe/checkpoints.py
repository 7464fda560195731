"""Times the saves and loads of checkpoints."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from keepstep.probe.record import Record

_MOST = 100  # that are kept; some jobs read every sample with torch.load
FUNCTIONS = {  # in the modules that define them
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_loader": ("load",),
    "torch.serialization": ("save", "load"),
}


class Checkpoints:
    """Replaces the functions that save and load."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._depth = 0  # torch.distributed.checkpoint uses torch.save for what it stores

    def watch(self, module: Any, _: float = 0.0) -> None:
        """Replace those functions of a module that save or load."""
        for name in FUNCTIONS[module.__name__]:
            setattr(module, name, self._watched(module, name))

    def _watched(self, module: Any, name: str) -> Callable[..., Any]:
        original = getattr(module, name)
        public = "torch" if module.__name__ == "torch.serialization" else module.__package__
        function = f"{public}.{name}"

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            self._depth += 1
            began = time.perf_counter()
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            self._note(function, began)
            future = getattr(result, "upload_completion", result)
            if name == "async_save" and hasattr(future, "add_done_callback"):
                future.add_done_callback(lambda _: self._note(f"{function}, to the end", began))
            return result

        return watched

    def _note(self, function: str, began: float) -> None:
        if len(self._record.checkpoints) < _MOST:
            action = "load" if function.endswith("load") else "save"
            seconds = time.perf_counter() - began
            self._record.checkpoints.append(
                {"action": action, "function": function, "seconds": seconds}
            )
