"""The random generators of one process: Python, NumPy (if loaded), torch on CPU and GPU.

They are captured twice a step, and most programs use one of them. Building a copy through the
public functions costs up to a tenth of a millisecond each with cold caches, so a generator is asked
for its state only when the memory that holds it has changed since it was asked last.
"""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Callable
from typing import Any

import torch

Part = tuple[list[Any], bytes]  # settings as plain JSON values, words
Captured = dict[str, Part]  # by generator

_HEADER = object.__basicsize__  # reference count and type: they say nothing about the state


class _Watched:
    """A generator whose state is read again only after its memory has changed."""

    def __init__(
        self, owner: Any, words_at: int, words_size: int, read: Callable[[], Part]
    ) -> None:
        """``owner`` is its Python object; ``words_size`` is 0 if its words lie inside that."""
        self._object_at = id(owner) + _HEADER
        self._object_size = max(0, type(owner).__basicsize__ - _HEADER)
        self._words_at, self._words_size = words_at, words_size
        self._read = read
        self._seen: tuple[bytes, bytes, Any] | None = None
        self._owner = owner
        self._last = read()
        words = self._last[1][: 4 * 624]
        where = self._fingerprint()
        # Nothing is assumed about the interpreter: if the words are not there, look every time.
        self._is_watchable = bool(words) and any(words in memory for memory in where[:2])

    def _fingerprint(self) -> tuple[bytes, bytes, Any]:
        return (
            ctypes.string_at(self._object_at, self._object_size),
            ctypes.string_at(self._words_at, self._words_size),
            getattr(self._owner, "gauss_next", None),  # of Python's own: an attribute
        )

    def capture(self) -> Part:
        if not self._is_watchable:
            return self._read()
        now = self._fingerprint()
        if now != self._seen:
            self._last = self._read()
            self._seen = now
        return self._last


def _read_python() -> Part:
    version, words, gauss = random.getstate()
    return [version, gauss], array("I", words).tobytes()


def _watch_python() -> _Watched:
    owner = random.getstate.__self__  # type: ignore[attr-defined]  # what the module's functions use
    return _Watched(owner, 0, 0, _read_python)


_USUAL = "MT19937"  # the bit generator of NumPy's module functions, unless it was exchanged


def _read_numpy() -> Part:
    state = sys.modules["numpy"].random.get_state(legacy=False)
    if state["bit_generator"] != _USUAL:
        return [state["bit_generator"], _plain(state)], b""
    words = state["state"]
    settings = [_USUAL, int(words["pos"]), int(state["has_gauss"]), float(state["gauss"])]
    return settings, words["key"].tobytes()


def _plain(value: Any) -> Any:
    """Return a state with its arrays as lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _set_numpy(numpy: Any, settings: list[Any], words: bytes) -> None:
    name, *rest = settings
    if name != type(numpy.random.get_state.__self__._bit_generator).__name__:
        numpy.random.set_bit_generator(getattr(numpy.random, name)())
    if name == _USUAL:
        position, has_gauss, cached = rest
        numbers = numpy.frombuffer(words, dtype=numpy.uint32).copy()
        numpy.random.set_state((name, numbers, position, has_gauss, cached))
        return
    (state,) = rest
    inner = {
        key: numpy.array(item, dtype=numpy.uint64) if isinstance(item, list) else item
        for key, item in state["state"].items()
    }
    buffers = {
        key: numpy.array(item, dtype=numpy.uint64)
        for key, item in state.items()
        if isinstance(item, list)
    }
    numpy.random.set_state({**state, **buffers, "state": inner})


def _watch_numpy(numpy: Any) -> tuple[_Watched, Any]:
    owner = numpy.random.get_state.__self__
    generator = owner._bit_generator
    size = 4 * 625 if type(generator).__name__ == _USUAL else 0  # key[624], position
    return _Watched(owner, generator.ctypes.state_address, size, _read_numpy), generator


_python: _Watched | None = None
_numpy: tuple[_Watched, Any] | None = None
_newest: Captured = {}


def capture() -> Captured:
    """Return the state of every generator (about 10 kB), settings as plain JSON values.

    The same object as before, if none was used.
    """
    global _python, _numpy, _newest
    if _python is None:
        _python = _watch_python()
    torch_words = _bytes_of(torch.default_generator.get_state())
    found: Captured = {"python": _python.capture(), "torch": ([], torch_words)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if _numpy is None or _numpy[1] is not numpy.random.get_state.__self__._bit_generator:
            _numpy = _watch_numpy(numpy)
        found["numpy"] = _numpy[0].capture()
    if torch.cuda.is_initialized():
        found["cuda"] = ([], _bytes_of(torch.cuda.get_rng_state()))
    if found != _newest:
        _newest = found
    return _newest


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def restore(captured: Captured) -> None:
    """Set every generator to a state that ``capture`` returned."""
    (version, gauss), words = captured["python"]
    random.setstate((version, tuple(array("I", words)), gauss))
    torch.set_rng_state(_tensor(captured["torch"][1]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in captured:
        _set_numpy(numpy, *captured["numpy"])
    if torch.cuda.is_initialized() and "cuda" in captured:
        torch.cuda.set_rng_state(_tensor(captured["cuda"][1]))


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
