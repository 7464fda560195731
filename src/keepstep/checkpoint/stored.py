"""What is stored in a slice of a data file: a zip of ``torch.save``, with a CRC-32 of each part.

A slice is a whole zip inside the file. ``zipfile`` would take ten times as long to open each of a
million; what PyTorch writes (stored, no comment, nothing encrypted) is quickly walked.
"""

from __future__ import annotations

import pickletools
import struct
import zlib
from dataclasses import dataclass
from typing import Any

_END = struct.Struct("<4s4H2LH")
_END_64_PLACE = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_BIG = 0xFFFFFFFF  # in place of a number that stands in a 64-bit field
_BLOCK = 8 << 20


class DamagedSliceError(Exception):
    """A slice is not what PyTorch wrote; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the zip: where its bytes begin in the slice, how many, and their CRC-32."""

    name: str
    start: int
    size: int
    crc: int


def parts(data: memoryview) -> list[Part]:
    """Return the parts of a slice.

    Raises:
        DamagedSliceError: It is no zip as PyTorch writes it.
    """
    try:
        place, count = _directory(data)
        found = []
        for _ in range(count):
            part, place = _part(data, place)
            found.append(part)
    except struct.error:
        raise DamagedSliceError("a zip that is cut off") from None
    return found


def check_parts(data: memoryview, found: list[Part]) -> bool:
    """Check every part's CRC; returns False where the writer had CRCs switched off (all are 0).

    Raises:
        DamagedSliceError: A part is not what was written.
    """
    if all(part.crc == 0 for part in found):
        return False
    for part in found:
        crc = 0
        for at in range(part.start, part.start + part.size, _BLOCK):
            crc = zlib.crc32(data[at : min(at + _BLOCK, part.start + part.size)], crc)
        if crc != part.crc:
            raise DamagedSliceError(
                f"{part.name} has CRC {crc:08x}, and {part.crc:08x} was written"
            )
    return True


def tensor_part(found: list[Part]) -> Part | None:
    """Return the part that holds a tensor's elements."""
    return next((part for part in found if part.name.endswith("/data/0")), None)


def _directory(data: memoryview) -> tuple[int, int]:
    """Return where the list of parts begins and how many there are."""
    at = len(data) - _END.size
    if at < 0 or bytes(data[:2]) != b"PK":
        raise DamagedSliceError("no zip begins here")
    signature, *_, count, _, place, _ = _END.unpack_from(data, at)
    if signature != b"PK\x05\x06":
        raise DamagedSliceError("the end of its zip is not where it should be")
    if at >= _END_64_PLACE.size:
        signature, _, end_64, _ = _END_64_PLACE.unpack_from(data, at - _END_64_PLACE.size)
        if signature == b"PK\x06\x07" and end_64 <= len(data):
            signature, *_, count, _, place = _END_64.unpack_from(data, end_64)
            if signature != b"PK\x06\x06":
                raise DamagedSliceError("the end of its zip is damaged")
    return place, count


def _part(data: memoryview, place: int) -> tuple[Part, int]:
    if not 0 <= place < len(data):
        raise DamagedSliceError("the list of its parts is damaged")
    fields = _ENTRY.unpack_from(data, place)
    signature, method, header = fields[0], fields[4], fields[16]
    crc, stored, size, name_length, extra_length, comment_length = fields[7:13]
    if signature != b"PK\x01\x02" or method != 0:
        raise DamagedSliceError("the list of its parts is damaged")
    at = place + _ENTRY.size
    name = bytes(data[at : at + name_length]).decode("utf-8", "replace")
    extra = bytes(data[at + name_length : at + name_length + extra_length])
    size, stored, header = _wide(extra, size, stored, header)
    if header < 0 or header + _LOCAL.size > len(data):
        raise DamagedSliceError(f"{name} begins beyond the end")
    local = _LOCAL.unpack_from(data, header)
    start = header + _LOCAL.size + local[9] + local[10]
    if local[0] != b"PK\x03\x04" or stored != size or start + size > len(data):
        raise DamagedSliceError(f"{name} is not where the list of parts says")
    return Part(name, start, size, crc), at + name_length + extra_length + comment_length


def _wide(extra: bytes, *numbers: int) -> list[int]:
    """Return the numbers, those that did not fit into 32 bits from the zip64 field."""
    wide = b""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + size]
        at += 4 + size
    found = []
    for number in numbers:
        if number == _BIG:
            (number,) = struct.unpack_from("<Q", wide)
            wide = wide[8:]
        found.append(number)
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """How a stored tensor lies in its bytes, all in elements."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def layout_of(pickled: bytes) -> Layout:
    """Read a tensor's layout from the pickle beside its bytes; nothing is called.

    Raises:
        DamagedSliceError: The pickle is not that of a plain tensor.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    mark = object()
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name == "MARK":
                stack.append(mark)
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            elif name == "TUPLE":
                at = len(stack) - 1 - stack[::-1].index(mark)
                stack[at:] = [tuple(stack[at + 1 :])]
            elif name == "EMPTY_TUPLE":
                stack.append(())
            elif name == "BINPERSID":
                stack[-1] = "storage"
            elif name == "REDUCE":
                arguments = stack.pop()
                if stack[-1] == "torch._utils _rebuild_tensor_v2":
                    _, offset, sizes, strides, *_ = arguments
                    return _layout(offset, sizes, strides)
                stack[-1] = None
            elif name not in ("PROTO", "STOP", "FRAME"):
                stack.append(argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError):
        pass
    raise DamagedSliceError("it does not hold a plain tensor")


def _layout(offset: Any, sizes: Any, strides: Any) -> Layout:
    numbers = (offset, *sizes, *strides)
    if any(type(n) is not int or n < 0 for n in numbers) or len(sizes) != len(strides):
        raise ValueError("not the layout of a tensor")
    return Layout(offset, tuple(sizes), tuple(strides))
