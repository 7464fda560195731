"""Which PyTorch wrote a checkpoint, from the first kilobytes of its metadata.

The decisive mark is the first tensor's ``TensorProperties``: where the class lives and how long its
state is. An interpreter without effects follows the pickle up to there: it hashes nothing, calls
nothing and makes no more objects than there are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.names import ALLOWED, METADATA
from keepstep.checkpoint.opcodes import STOP, first_opcode, opcodes

# The tail holds the last field but one, StorageMeta, in which Python 3.13 leaves its mark.
_PYTHON_313 = b"\x8c\x0epathlib._local\x94"
_STORAGE_META = b"\x8c\x0bStorageMeta\x94\x93"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """What the beginning and the end of a metadata file say about its writer."""

    properties_module: str | None  # home of TensorProperties; None without any tensor
    properties_fields: int | None  # length of its state: 5, or 6 from PyTorch 2.15 on
    storage_meta: bool  # written since 2.4
    python_313: bool  # holds a path in the way of Python 3.13, which 3.12 and older cannot read
    whole: bool  # nothing of the file was left unseen


class _Global(NamedTuple):
    module: str
    name: str


class _Made(NamedTuple):
    of: Any


_MARK = object()


def peek(head: bytes, tail: bytes, *, whole: bool) -> Peek | None:
    """Read the marks of the writer; None when ``head`` ends before the first tensor.

    Args:
        head: The first bytes of the file.
        tail: The last bytes; equal to ``head`` where that is the whole file.
        whole: ``head`` is the whole file.

    Raises:
        UnsafeMetadataError: Damaged, or no checkpoint metadata at all.
    """
    try:
        found = _first_properties(head)
    except IndexError:
        if whole:
            raise UnsafeMetadataError(
                f"the metadata of {len(head)} bytes is damaged: its pickle ends too early"
            ) from None
        return None
    return Peek(
        properties_module=found and found[0],
        properties_fields=found and found[1],
        storage_meta=_STORAGE_META in tail,
        python_313=_PYTHON_313 in tail,
        whole=whole,
    )


def _first_properties(data: bytes) -> tuple[str, int] | None:
    machine = _Machine()
    if len(data) < 2:
        raise IndexError(len(data))
    for opcode in opcodes(data, first_opcode(data)):
        if opcode.code == STOP:
            machine.check_end()
            return None
        found = machine.step(opcode.code, opcode.argument, opcode.start)
        if found is not None:
            return found
    raise AssertionError("opcodes end with STOP or raise")


class _Machine:
    """Stack and memo of a pickle, with stand-ins for everything that would be called."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: list[Any] = []

    def check_end(self) -> None:
        top = self._stack[-1] if len(self._stack) == 1 else None
        if not isinstance(top, _Made) or top.of != (METADATA, "Metadata"):
            raise UnsafeMetadataError("the pickle does not hold the metadata of a checkpoint")

    def step(self, code: int, argument: bytes, position: int) -> tuple[str, int] | None:
        """Follow one opcode; returns home and length when it builds tensor properties."""
        stack = self._stack
        try:
            if code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code in (0x8C, ord("X")):
                stack.append(argument.decode("utf-8", "surrogatepass"))
            elif code in b"KMJ\x8a":
                stack.append(0)  # the numbers themselves do not matter here
            elif code == 0x94:
                self._memo.append(stack[-1])
            elif code in b"hj":
                stack.append(self._memo[int.from_bytes(argument, "little")])
            elif code in b"\x85\x86\x87":
                self._join(code - 0x84)
            elif code in b"teu":
                self._close(code)
            elif code in b"as":
                del stack[-1 if code == ord("a") else -2 :]
            elif code == ord("0"):
                stack.pop()
            elif code == 0x93:
                self._find()
            elif code in b"R\x81":
                del stack[-1]
                stack[-1] = _Made(stack[-1])
            elif code == ord("b"):
                return self._build()
        except (IndexError, UnicodeDecodeError):
            raise UnsafeMetadataError(f"the pickle is damaged at byte {position}") from None
        return None

    def _join(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError(count)
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _close(self, code: int) -> None:
        mark = len(self._stack) - 1
        while self._stack[mark] is not _MARK:
            mark -= 1
            if mark < 0:
                raise IndexError(mark)
        items = tuple(self._stack[mark + 1 :])
        del self._stack[mark:]
        if code == ord("t"):
            self._stack.append(items)

    def _find(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if (module, name) not in ALLOWED:
            raise UnsafeMetadataError(
                f"the metadata names {module!s:.200}.{name!s:.200}: "
                "no PyTorch writes that into a checkpoint"
            )
        self._stack.append(_Global(module, name))

    def _build(self) -> tuple[str, int] | None:
        state, target = self._stack.pop(), self._stack[-1]
        made = target.of if isinstance(target, _Made) else None
        if isinstance(made, _Global) and made.name == "TensorProperties":
            if not isinstance(state, tuple) or len(state) not in (5, 6):
                raise UnsafeMetadataError("tensor properties of an unknown form")
            return made.module, len(state)
        return None


_CONSTANTS: dict[int, Any] = {
    ord("N"): None,
    0x88: True,
    0x89: False,
    ord(")"): (),
    ord("}"): "dict",
    ord("]"): "list",
    ord("("): _MARK,
}
