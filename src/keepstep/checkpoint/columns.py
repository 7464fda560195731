"""How the limited process hands numbers over: as arrays, since lists of them take long in JSON."""

from __future__ import annotations

from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from keepstep.checkpoint.errors import UnsafeMetadataError

Packed = tuple[str, str]  # type code of an array, and its bytes in base64


def all_of(values: Iterable[Any], *kinds: type) -> bool:
    """Tell whether every value is of one of these types, and not of one derived from them."""
    return set(map(type, values)) <= set(kinds)


def pack(numbers: list[int]) -> Packed:
    """Return whole numbers as text.

    Raises:
        UnsafeMetadataError: One has more than 64 bits.
    """
    code = "i" if max(numbers, default=0) < 1 << 31 else "q"
    try:
        return code, b2a_base64(array(code, numbers), newline=False).decode()
    except OverflowError:
        raise UnsafeMetadataError("a size that no tensor can have") from None


def unpack(packed: Packed) -> array[int]:
    """Return what was packed."""
    numbers: array[int] = array(packed[0])
    numbers.frombytes(a2b_base64(packed[1]))
    return numbers


def pack_sizes(values: list[Any]) -> tuple[Packed, Packed]:
    """Return how many numbers each tuple has (-1: it is None), and the numbers of all of them.

    Raises:
        UnsafeMetadataError: Something is no tuple of sizes, nor None.
    """
    if all_of(values, tuple, type(None)):
        numbers = list(chain.from_iterable(filter(None, values)))
        if all_of(numbers, int) and min(numbers, default=0) >= 0:
            counts = [-1 if value is None else len(value) for value in values]
            return pack(counts), pack(numbers)
    raise UnsafeMetadataError("a shape that is no tuple of sizes")


def unpack_sizes(packed: tuple[Packed, Packed]) -> Iterator[Any]:
    """Yield the tuples, or None, that were packed."""
    rest = iter(unpack(packed[1]))
    for count in unpack(packed[0]):
        yield None if count < 0 else tuple(islice(rest, count))
