"""Rewrites checkpoint metadata for an older PyTorch, by a few bytes a tensor.

Nothing is unpickled. The walk of ``opcodes`` stops at the places that an older version cannot read,
and each gets the smallest edit that keeps the numbers of the pickle's memo:

* the sixth tensor property (2.15): a POP in front of the TUPLE that closes the properties;
* StorageMeta (2.4): the global is not looked up, its fields are built and dropped, None remains;
* the home of TensorProperties (2.3): the older module's name in place of a reference;
* the path of Python 3.13: the module's name that every other version uses.

A FRAME would have a wrong length after an insertion. Frames only help to read ahead, so all go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from keepstep.checkpoint.dropped import POP
from keepstep.checkpoint.eras import not_older
from keepstep.checkpoint.errors import CannotConvertError, UnsafeMetadataError
from keepstep.checkpoint.names import SHARDED
from keepstep.checkpoint.opcodes import (
    FRAME,
    INTEGER,
    LONG_TEXT,
    REFERENCE,
    SIMPLE,
    STOP,
    TEXT,
    Buffer,
    code_at,
    first_opcode,
    opcodes,
    sequence,
    skip_other,
)


class Edit(NamedTuple):
    """Replace ``data[start:end]``."""

    start: int
    end: int
    by: bytes


class Rewritten(NamedTuple):
    """The new metadata, and how many places of each kind have changed."""

    data: bytes
    strides: int  # tensors whose strides were dropped
    storage_meta: bool
    old_home: bool
    python_313: bool

    @property
    def changed(self) -> bool:
        """Whether anything had to change."""
        return bool(self.strides) or not self.only_strides

    @property
    def only_strides(self) -> bool:
        """Whether nothing else has changed but that strides were dropped."""
        return not (self.storage_meta or self.old_home or self.python_313)


def rewrite(data: Buffer, minor: str) -> Rewritten:
    """Return the metadata as PyTorch ``minor`` (such as "2.14") and newer ones can read it.

    Raises:
        UnsafeMetadataError: The file is damaged, or holds an opcode that no checkpoint holds.
        CannotConvertError: A place has a form that no known writer gives it.
    """
    data = unframed(data)
    edits = list(_edits(data, minor))
    pieces: list[bytes | memoryview] = []
    at = 0
    with memoryview(data) as view:
        for edit in edits:
            pieces += [view[at : edit.start], edit.by]
            at = edit.end
        pieces.append(view[at:])
        new = b"".join(pieces)
        for piece in pieces:
            if isinstance(piece, memoryview):
                piece.release()
    return Rewritten(
        data=new,
        strides=sum(edit.by == POP and edit.start == edit.end for edit in edits),
        storage_meta=any(edit.by == _NOTHING for edit in edits),
        old_home=any(SHARDED.encode() in edit.by for edit in edits),
        python_313=any(edit.by == _PATHLIB for edit in edits),
    )


def unframed(data: Buffer) -> bytes:
    """Return the same pickle without frames; one may begin anywhere between two opcodes.

    Frames follow each other, but for texts of more than 64 kB, which stand between them.
    """
    position = first_opcode(data)
    pieces = [data[:position]]
    while position < len(data):
        begin = position
        if data[position] == FRAME:
            begin += 9
            position = begin + int.from_bytes(data[begin - 8 : begin], "little")
        elif data[position] == LONG_TEXT:
            position = skip_other(data, position, LONG_TEXT)
        else:
            position = len(data)
        pieces.append(data[begin:position])
    return b"".join(pieces)


def _edits(data: Buffer, minor: str) -> Iterator[Edit]:
    """Yield what to change, in the order of the file."""
    position = first_opcode(data)
    ordinary, properties = _ordinary(), _properties()
    while True:
        # Never None: the pattern also matches nothing at all.
        position = ordinary.match(data, position).end()  # type: ignore[union-attr]
        code = code_at(data, position)
        if code == STOP:
            break
        if code == ord("("):
            found = properties.match(data, position)
            assert found is not None, "the walk stops at a MARK only where this matches"
            if not not_older(minor, "2.3"):
                yield from _old_home(data, position, found.end(), _MEMORY_FORMAT, _OLD_FORMAT)
            if found["strides"] and not found["dropped"] and not not_older(minor, "2.15"):
                yield Edit(found.end("strides"), found.end("strides"), POP)
            position = found.end()
        elif code == 0x8C:
            special = _SPECIAL.match(data, position)
            if special is None:
                raise UnsafeMetadataError(f"the metadata ends within the text at byte {position}")
            yield from _special(data, position, special.group(), minor)
            position = special.end()
        else:
            position = skip_other(data, position, code)
    if position + 1 != len(data):
        raise UnsafeMetadataError(f"{len(data) - position - 1} bytes follow the end of the pickle")


def _special(data: Buffer, position: int, text: bytes, minor: str) -> Iterator[Edit]:
    if text == _PATHLIB_313:
        yield Edit(position, position + len(text), _PATHLIB)
    elif text == _STORAGE_META and not not_older(minor, "2.4"):
        yield from _without_storage_meta(data, position + len(text))
    elif text == _TENSOR_PROPERTIES and not not_older(minor, "2.3"):
        end = position + len(text)
        yield from _old_home(data, position - 2, end, _REFERENCE_0 + text, _OLD_MODULE + text)


def _old_home(data: Buffer, start: int, end: int, now: bytes, then: bytes) -> Iterator[Edit]:
    """Give a class the home that it had up to 2.2, where it is named for the first time."""
    at = data[start:end].find(now)
    if at >= 0:
        yield Edit(start + at, start + at + len(now), then)


def _without_storage_meta(data: Buffer, position: int) -> Iterator[Edit]:
    r"""Yield edits that leave None where StorageMeta stood; ``position`` is its STACK_GLOBAL.

    With the names of module and class on the stack, the opcodes are::

        STACK_GLOBAL MEMOIZE EMPTY_TUPLE NEWOBJ MEMOIZE EMPTY_DICT MEMOIZE ( ... SETITEMS BUILD

    STACK_GLOBAL and NEWOBJ become POP, BUILD becomes POP POP NONE: every MEMOIZE keeps its number,
    and what it numbers is never asked for again.
    """
    form = b"\x93\x94)\x81\x94}\x94("
    if data[position : position + len(form)] != form:
        raise CannotConvertError("StorageMeta has a form that no known version writes")
    yield Edit(position, position + 1, POP)
    yield Edit(position + 3, position + 4, POP)
    depth, done = 0, False
    for opcode in opcodes(data, position + len(form) - 1):
        if done:
            if opcode.code != ord("b"):
                break
            yield Edit(opcode.start, opcode.end, _NOTHING)
            return
        depth += (opcode.code == ord("(")) - (opcode.code in b"teu")
        done = depth == 0
    raise CannotConvertError("StorageMeta has a form that no known version writes")


_NOTHING = POP + POP + b"N"
_REFERENCE_0 = b"h\x00"  # the metadata module is the first text of every metadata file
_OLD_MODULE = b"\x8c" + bytes([len(SHARDED)]) + SHARDED.encode()  # not memoized
_TENSOR_PROPERTIES = b"\x8c\x10TensorProperties\x94"
_STORAGE_META = b"\x8c\x0bStorageMeta\x94"
_MEMORY_FORMAT = _REFERENCE_0 + b"\x8c\x14_MEM_FORMAT_ENCODING\x94"
_OLD_FORMAT = _OLD_MODULE + b"\x8c\x13MEM_FORMAT_ENCODING\x94"
_PATHLIB_313 = b"\x8c\x0epathlib._local\x94"
_PATHLIB = b"\x8c\x07pathlib\x94"

# Texts that name a class: STACK_GLOBAL follows. A tensor may have that name too.
_SPECIAL_TEXT = (
    b"(?:"
    + b"|".join(
        (
            re.escape(_TENSOR_PROPERTIES) + rb"(?=\x93)",
            re.escape(_STORAGE_META) + rb"(?=\x93)",
            re.escape(_PATHLIB_313) + rb"(?=\x8c\x09PosixPath\x94\x93)",
        )
    )
    + b")"
)
_SPECIAL = re.compile(_SPECIAL_TEXT, re.DOTALL)

# The state of TensorProperties: dtype, layout, requires_grad, memory format, pin_memory, strides.
_NAME = rb"(?:" + REFERENCE + rb"|\x8c.[\w.]{1,60}\x94)"
_CLASS = _NAME + _NAME + rb"\x93\x94"
_STATE = (
    rb"\("
    + rb"(?:" + _CLASS + rb"|" + REFERENCE + rb")"
    + rb"(?:" + _CLASS + _NAME + rb"\x85\x94R\x94|" + REFERENCE + rb")"
    + rb"[\x88\x89]"
    + rb"(?:" + _CLASS + rb"K.\x85\x94R\x94|" + REFERENCE + rb")"
    + rb"[\x88\x89]"
)  # fmt: skip
_STRIDES = (
    rb"(?:N|\)|" + REFERENCE
    + rb"|" + INTEGER + rb"{1,3}[\x85-\x87]\x94"
    + rb"|\(" + INTEGER + rb"{4,}t\x94)"
)  # fmt: skip
_END = rb"t\x94b"


@cache
def _properties() -> re.Pattern[bytes]:
    strides = b"(?:(?P<strides>" + _STRIDES + b")(?P<dropped>0)?)?"
    return re.compile(_STATE + strides + _END, re.DOTALL)


@cache
def _ordinary() -> re.Pattern[bytes]:
    """Return what matches all opcodes up to the next place that may have to change."""
    state = _STATE + b"(?:" + _STRIDES + b"0?)?" + _END  # 0: dropped by an earlier rewriting
    mark = rb"\((?!" + state[2:] + b")"
    return sequence(SIMPLE, b"(?!" + _SPECIAL_TEXT + b")" + TEXT, mark)
