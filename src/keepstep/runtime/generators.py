"""The random generators of one process: Python, NumPy (if loaded), torch on CPU and GPU."""

from __future__ import annotations

import base64
import random
import struct
import sys
from typing import Any

import torch

from keepstep.runtime.buffers import buffer_of

_WORDS = 625  # state of the Mersenne Twister: 624 words and a position


def capture() -> dict[str, Any]:
    """Return the state of every generator as plain JSON values (about 10 kB)."""
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {
        "python": [version, _text(struct.pack(f"<{_WORDS}I", *words)), gauss],
        "torch": _text(bytes(buffer_of(torch.get_rng_state()))),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = [name, _text(keys.tobytes()), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_initialized():
        found["cuda"] = _text(bytes(buffer_of(torch.cuda.get_rng_state())))
    return found


def restore(captured: dict[str, Any]) -> None:
    """Set every generator to a state that ``capture`` returned."""
    version, words, gauss = captured["python"]
    random.setstate((version, struct.unpack(f"<{_WORDS}I", _bytes(words)), gauss))
    torch.set_rng_state(_tensor(captured["torch"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in captured:
        name, keys, position, has_gauss, cached = captured["numpy"]
        array = numpy.frombuffer(_bytes(keys), dtype=numpy.uint32).copy()
        numpy.random.set_state((name, array, position, has_gauss, cached))
    if torch.cuda.is_initialized() and "cuda" in captured:
        torch.cuda.set_rng_state(_tensor(captured["cuda"]))


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
