"""Digests that prove two runs to have had the same model and the same data."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_WHOLE = 64 << 20  # a model of up to so many bytes is digested whole
_SAMPLE = 4096  # elements of each parameter of a larger one
_MOST_DATA = 4 << 20  # bytes of one input tensor
_DEEPEST = 4  # of inputs inside lists and dictionaries
_LIKE_DATA = (str, int, float, bool, type(None))


def model(parameters: Iterable[Any]) -> tuple[str, int, str]:
    """Digest parameters as they lie on this rank.

    Returns:
        SHA-256, number of elements, and how much of them was read, in words.
    """
    local = [local_part(parameter) for parameter in parameters]
    size = sum(each.numel() * each.element_size() for each in local)
    most = None if size <= _WHOLE else _SAMPLE
    digest = hashlib.sha256()
    for tensor in local:
        add_tensor(digest, tensor, most)
    elements = sum(each.numel() for each in local)
    if most is None:
        return digest.hexdigest(), elements, "all elements"
    return digest.hexdigest(), elements, f"{_SAMPLE} elements of each of {len(local)} parameters"


class Data:
    """Digests what the model is given, call by call."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.calls = 0

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Add one call.

        What comes from another part of the model (it requires a gradient) counts with its shape
        only: it is a result, not data.
        """
        self.calls += 1
        for value in _leaves((args, kwargs), 0):
            if not _is_tensor(value):
                said = value if isinstance(value, _LIKE_DATA) else type(value).__name__
                self._digest.update(repr(said).encode())
            elif value.requires_grad:
                self._digest.update(_shape(value))
            else:
                local = local_part(value)
                add_tensor(self._digest, local, _MOST_DATA // max(1, local.element_size()))

    def hexdigest(self) -> str | None:
        """Return SHA-256 of all calls; None before the first."""
        return self._digest.hexdigest() if self.calls else None


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the first tensor that a call was given, None where there is none."""
    return next((value for value in _leaves((args, kwargs), 0) if _is_tensor(value)), None)


def is_without_data(tensor: Any) -> bool:
    """Return whether a tensor is a shape only (meta, fake)."""
    return bool(tensor.is_meta) or "Fake" in type(tensor).__name__


def add_tensor(digest: Any, tensor: Any, most: int | None) -> None:
    """Add shape, dtype and bytes of a tensor, of at most ``most`` elements spread over it."""
    digest.update(_shape(tensor))
    flat = tensor.detach().reshape(-1)
    if most is not None and flat.numel() > most:
        flat = flat[:: -(-flat.numel() // most)]
    flat = flat.contiguous().cpu()
    size = flat.numel() * flat.element_size()
    if size:
        # Its memory, and not numpy: numpy may be missing, and does not know every dtype.
        digest.update((ctypes.c_char * size).from_address(flat.data_ptr()))


def local_part(tensor: Any) -> Any:
    """Return what of a tensor lies on this rank; no communication."""
    to_local = getattr(tensor, "_local_tensor", None)  # of a DTensor
    return tensor.detach() if to_local is None else to_local.detach()


def _shape(tensor: Any) -> bytes:
    return f"{tensor.dtype} {list(tensor.shape)}".encode()


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if depth > _DEEPEST:
        yield type(value).__name__
    elif isinstance(value, Mapping):
        for key in value:
            yield key
            yield from _leaves(value[key], depth + 1)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each, depth + 1)
    else:
        yield value
