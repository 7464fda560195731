"""The bytes of a tensor, without a copy and without NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def buffer_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy; the tensor lives as long."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    array: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.owner = tensor
    return memoryview(array).cast("B")
