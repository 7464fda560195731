"""The random generators of one process: Python, NumPy (if loaded), torch on CPU and GPU."""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any

import torch

from keepstep.runtime.buffers import buffer_of

Captured = dict[str, tuple[list[Any], bytes]]  # generator -> (its settings, its words)


def capture() -> Captured:
    """Return the state of every generator (about 8 kB), settings as plain JSON values."""
    version, words, gauss = random.getstate()
    found: Captured = {
        "python": ([version, gauss], array("I", words).tobytes()),
        "torch": ([], bytes(buffer_of(torch.get_rng_state()))),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        settings = [name, int(position), int(has_gauss), float(cached)]
        found["numpy"] = (settings, keys.tobytes())
    if torch.cuda.is_initialized():
        found["cuda"] = ([], bytes(buffer_of(torch.cuda.get_rng_state())))
    return found


def restore(captured: Captured) -> None:
    """Set every generator to a state that ``capture`` returned."""
    (version, gauss), words = captured["python"]
    random.setstate((version, tuple(array("I", words)), gauss))
    torch.set_rng_state(_tensor(captured["torch"][1]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in captured:
        (name, position, has_gauss, cached), keys = captured["numpy"]
        numbers = numpy.frombuffer(keys, dtype=numpy.uint32).copy()
        numpy.random.set_state((name, numbers, position, has_gauss, cached))
    if torch.cuda.is_initialized() and "cuda" in captured:
        torch.cuda.set_rng_state(_tensor(captured["cuda"][1]))


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
