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

_LARGEST = 4096  # bytes; torch's object has some 2,600
_HEADER = object.__basicsize__  # reference count and type: they say nothing about the state


class _Watched:
    """A generator whose state is read again only after its memory has changed."""

    def __init__(
        self,
        owner: Any,
        memory: list[tuple[int, int]],
        read: Callable[[], Part],
        words: Callable[[bytes], bytes] = lambda state: state[: 4 * 624],
        beside: Callable[[], Any] = lambda: None,
    ) -> None:
        """``memory``: address and size of what holds the state, ``owner`` keeps it alive.

        ``words`` returns of a state that was read what lies there, ``beside`` an object that is
        another one when something has changed that does not lie there.
        """
        self.owner, self._read, self._beside = owner, read, beside
        self._views = [_view(address, size) for address, size in memory if size > 0]
        self._memory = self._look()
        self._seen_beside = beside()
        self.part = read()
        sought = words(self.part[1])
        # Nothing is assumed about other people's objects: if the words are not there, look always.
        self.is_watchable = bool(sought) and any(sought in seen for _, seen in self._memory)

    def _look(self) -> list[tuple[memoryview, bytes]]:
        return [(view, bytes(view)) for view in self._views]

    def refresh(self) -> Part:
        """Return the state, read again if it may have changed."""
        if self.is_watchable and self._beside() is self._seen_beside:
            for view, seen in self._memory:
                if bytes(view) != seen:
                    break
            else:
                return self.part
        # Looked at before it is read: what another thread changes meanwhile must not pass as seen.
        looked, beside = self._look(), self._beside()
        self.part = self._read()
        self._memory, self._seen_beside = looked, beside
        return self.part


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _object_memory(owner: Any) -> tuple[int, int]:
    return id(owner) + _HEADER, type(owner).__basicsize__ - _HEADER


def _read_python() -> Part:
    version, words, gauss = random.getstate()
    return [version, gauss], array("I", words).tobytes()


_used_by_python: Any = random.getstate.__self__  # type: ignore[attr-defined]  # by its functions


def _watch_python() -> _Watched:
    memory = [_object_memory(_used_by_python)]
    return _Watched(_used_by_python, memory, _read_python, beside=_kept_by_python)


def _kept_by_python() -> float | None:
    """Return the second of two normal numbers, if it has not been taken."""
    return _used_by_python.gauss_next  # type: ignore[no-any-return]


def _read_torch() -> Part:
    return [], _bytes_of(torch.default_generator.get_state())


def _watch_torch() -> _Watched:
    return _Watched(torch.default_generator, _memory_of_torch(), _read_torch, _words_of_torch)


def _memory_of_torch() -> list[tuple[int, int]]:
    """Return where the C++ object behind torch's generator lies, if that can be known."""
    try:
        address = int(torch.default_generator._cdata)  # type: ignore[attr-defined]
        measure = ctypes.CDLL(None).malloc_usable_size
    except AttributeError:
        return []
    measure.argtypes, measure.restype = [ctypes.c_void_p], ctypes.c_size_t
    size = int(measure(address))
    return [(address, size)] if 4 * 624 < size < _LARGEST else []


def _words_of_torch(state: bytes) -> bytes:
    """Return the words as they lie in memory: 4 bytes each, in a state 8, after a header."""
    return array("I", array("Q", state[24 : 24 + 8 * 624])).tobytes()


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


def _watch_numpy(numpy: Any) -> _Watched:
    state = numpy.random.get_state.__self__
    generator = state._bit_generator
    size = 4 * 625 if type(generator).__name__ == _USUAL else 0  # key[624], position
    words = (generator.ctypes.state_address, size)
    return _Watched(generator, [_object_memory(state), words], _read_numpy)


_python: _Watched | None = None
_torch: _Watched | None = None
_numpy: _Watched | None = None
_newest: Captured = {}


def capture() -> Captured:
    """Return the state of every generator (about 10 kB), settings as plain JSON values.

    The same object as before, if none was used.
    """
    global _python, _torch, _numpy, _newest
    if _python is None or _torch is None:
        _python, _torch = _watch_python(), _watch_torch()
    numpy = sys.modules.get("numpy")
    if numpy is not None and (
        _numpy is None or _numpy.owner is not numpy.random.get_state.__self__._bit_generator
    ):
        _numpy = _watch_numpy(numpy)
    found = {"python": _python.refresh(), "torch": _torch.refresh()}
    if _numpy is not None:
        found["numpy"] = _numpy.refresh()
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
