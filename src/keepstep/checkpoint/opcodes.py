"""The pickle opcodes that occur in checkpoint metadata, and a fast walk over them.

The walk is one regular expression, so it runs at the speed of C, uses no memory and decides
nothing by looking at bytes out of step: every match begins where an opcode begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from mmap import mmap
from typing import NamedTuple

from keepstep.checkpoint.errors import UnsafeMetadataError

Buffer = bytes | mmap

PROTOCOLS = (4, 5)  # what pickle writes by default since Python 3.8, and since 3.14
STOP, FRAME, LONG_TEXT = ord("."), 0x95, ord("X")

# Bytes that follow an opcode; texts carry their own length.
_FIXED = {
    **dict.fromkeys(b"N\x88\x89()tb\x85\x86\x87\x94}]aesuR\x81\x930.", 0),
    ord("K"): 1,
    ord("M"): 2,
    ord("J"): 4,
    ord("h"): 1,
    ord("j"): 4,
    FRAME: 8,
}
_PREFIXED = {0x8C: 1, 0x8A: 1, LONG_TEXT: 4}  # size of the length in front of the content


class Opcode(NamedTuple):
    """One opcode: where it begins, which it is, its argument and where the next one begins."""

    start: int
    code: int
    argument: bytes
    end: int


def opcodes(data: Buffer, start: int) -> Iterator[Opcode]:
    """Yield the opcodes from ``start`` on, one by one (slow: for a few thousand).

    Raises:
        UnsafeMetadataError: An opcode that no checkpoint holds.
        IndexError: The data ends within an opcode or before STOP.
    """
    while True:
        code = data[start]
        if code in _FIXED:
            content, end = start + 1, start + 1 + _FIXED[code]
        elif code in _PREFIXED:
            content = start + 1 + _PREFIXED[code]
            end = content + int.from_bytes(data[start + 1 : content], "little")
        else:
            raise refused(code, start)
        if end > len(data):
            raise IndexError(end)
        yield Opcode(start, code, data[content:end], end)
        if code == STOP:
            return
        start = end


def check_opcodes(data: Buffer) -> None:
    """Check that the whole file consists of allowed opcodes and ends with its STOP.

    Raises:
        UnsafeMetadataError: It does not.
    """
    position = first_opcode(data)
    while True:
        # Never None: the pattern also matches nothing at all.
        position = _ordinary().match(data, position).end()  # type: ignore[union-attr]
        code = code_at(data, position)
        if code == STOP:
            break
        position = skip_other(data, position, code)
    if position + 1 != len(data):
        raise UnsafeMetadataError(f"{len(data) - position - 1} bytes follow the end of the pickle")


def first_opcode(data: Buffer) -> int:
    """Return where the opcodes begin, after the protocol."""
    if len(data) < 2 or data[0] != 0x80 or data[1] not in PROTOCOLS:
        seen = "is empty" if not len(data) else f"begins with {bytes(data[:8]).hex(' ')}"
        raise UnsafeMetadataError(f"the file {seen}; wanted: a pickle of protocol 4 or 5")
    return 2


def skip_other(data: Buffer, position: int, code: int) -> int:
    """Step over an opcode that the regular expressions leave out; returns the next position."""
    if code != LONG_TEXT:
        raise refused(code, position)
    end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "little")
    if end > len(data):
        raise UnsafeMetadataError(truncated(len(data)))
    return end


def code_at(data: Buffer, position: int) -> int:
    """Return the opcode at ``position``, or say that the file ends there."""
    if position >= len(data):
        raise UnsafeMetadataError(truncated(len(data)))
    return data[position]


def refused(code: int, position: int) -> UnsafeMetadataError:
    """Return the error for an opcode that is not allowed, or is cut off by the end of the file."""
    if code == FRAME:
        return UnsafeMetadataError(f"a frame at byte {position}, within another or after a gap")
    if code in _FIXED or code in _PREFIXED:
        return UnsafeMetadataError(f"the metadata ends within the opcode at byte {position}")
    return UnsafeMetadataError(
        f"pickle opcode 0x{code:02x} at byte {position}: no PyTorch writes it into a checkpoint"
    )


def truncated(size: int) -> str:
    """Say that a pickle of ``size`` bytes ends early."""
    return f"the metadata ends after {size} bytes, before its pickle is complete"


# Pieces for regular expressions. Possessive, so that nothing is remembered for backtracking.
REFERENCE = rb"(?:h.|j....)"
_LONG = rb"\x8a(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(10)) + rb")"
INTEGER = rb"(?:K.|M..|J....|" + _LONG + rb")"
SIMPLE = rb"[N\x88\x89)tb\x85-\x87\x94}\]aesuR\x81\x930]"  # all without an argument but MARK
SIMPLE_OR_MARK = SIMPLE[:-1] + rb"(]"
TEXT = rb"\x8c(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(256)) + rb")"


def sequence(simple: bytes, text: bytes, *others: bytes) -> re.Pattern[bytes]:
    """Return what matches opcodes, one after the other, as many as follow the description.

    Args:
        simple: The class of opcodes without an argument that are part of it.
        text: Which texts are part of it.
        others: What else is part of it.
    """
    # Runs without arguments are matched along with what is in front of them: a third faster.
    run = simple + b"*+"
    frequent = (rb"h." + run, rb"K." + run, rb"j...." + run, rb"M.." + run, simple + b"++")
    parts = (*frequent, *others, rb"J....", _LONG, text)
    return re.compile(b"(?:" + b"|".join(parts) + b")*+", re.DOTALL)


@cache
def _ordinary() -> re.Pattern[bytes]:
    return sequence(SIMPLE_OR_MARK, TEXT, rb"\x95.{8}")
