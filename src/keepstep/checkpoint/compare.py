"""Whether two checkpoints hold equal tensors, however each of them is sharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import add, le, mul, sub

from keepstep.checkpoint.contents import Slice, Tensor, read_slices
from keepstep.checkpoint.errors import NotACheckpointError, UnsafeMetadataError
from keepstep.checkpoint.names import DTYPES
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL
from keepstep.checkpoint.store import Store
from keepstep.checkpoint.stored import DamagedSliceError, Layout, layout_of, parts, tensor_part
from keepstep.checkpoint.verify import mapped

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # of memoryview.cast, by bytes of an element


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry in which two checkpoints differ, or that could not be compared."""

    name: str
    text: str
    known: bool = True  # False: it could not be compared


def compare(one: Store, other: Store) -> tuple[int, list[Difference]]:
    """Compare two checkpoints entry by entry; returns how many are equal, and the differences."""
    with ExitStack() as stack:
        left, right = (_Side(store, stack) for store in (one, other))
        differences = []
        names = sorted(left.slices.keys() | right.slices.keys())
        for name in names:
            try:
                text = _difference(name, left, right)
            except DamagedSliceError as error:
                differences.append(Difference(name, f"not compared: {error}", known=False))
                continue
            if text:
                differences.append(Difference(name, text))
        return len(names) - len(differences), differences


class _Side:
    """One of the checkpoints, its data files opened when they are needed."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self._store, self._stack = store, stack
        self._files: dict[str, memoryview] = {}
        self.tensors: dict[str, Tensor] = {}
        self.slices: dict[str, list[Slice]] = {}
        files = store.files()
        names = [GLOBAL] if GLOBAL in files else sorted(filter(RANK_LOCAL.fullmatch, files))
        if not names:
            raise NotACheckpointError(f"{store.address}: no {GLOBAL}: nothing to compare")
        for name in names:
            try:
                with store.opened(name) as file:
                    contents, slices, _ = read_slices(file)
            except UnsafeMetadataError as error:
                raise UnsafeMetadataError(f"{store.address}: {name}: {error}") from None
            self.tensors.update((tensor.name, tensor) for tensor in contents.tensors)
            for each in slices:
                self.slices.setdefault(each.name, []).append(each)

    def content(self, each: Slice) -> memoryview:
        if each.transformed:
            raise DamagedSliceError("it went through an extension (compression, encryption)")
        try:
            if each.file not in self._files:
                self._files[each.file] = self._stack.enter_context(mapped(self._store, each.file))
        except (OSError, ValueError) as error:
            raise DamagedSliceError(f"{each.file}: {error}") from None
        return self._files[each.file][each.offset : each.offset + each.length]

    def elements(self, each: Slice, itemsize: int) -> memoryview:
        """Return a shard's elements, row by row."""
        assert each.sizes is not None, "only shards have elements"
        if prod(each.sizes) == 0:
            return memoryview(b"")
        content = self.content(each)
        found = parts(content)
        stored = tensor_part(found)
        pickled = next((part for part in found if part.name.endswith("/data.pkl")), None)
        if stored is None or pickled is None:
            raise DamagedSliceError(f"{each.file}: the slice holds no tensor")
        layout = layout_of(bytes(content[pickled.start : pickled.start + pickled.size]))
        if layout.sizes != each.sizes:
            raise DamagedSliceError(f"{each.file}: a tensor of shape {list(layout.sizes)} inside")
        return _in_rows(content[stored.start : stored.start + stored.size], layout, itemsize)


def _difference(name: str, left: _Side, right: _Side) -> str:
    for side, other in ((left, "second"), (right, "first")):
        if name not in side.slices:
            return f"only in the {other}"
    one, two = left.tensors.get(name), right.tensors.get(name)
    if one is None or two is None:
        if one is not two:
            return "a tensor in one, an object in the other"
        return _objects_differ(left, right, name)
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{one.dtype} {list(one.shape)} and {two.dtype} {list(two.shape)}"
    itemsize = DTYPES[one.dtype]
    if not itemsize:
        raise DamagedSliceError(f"{one.dtype} packs several elements into a byte")
    return _tensors_differ(left, right, name, itemsize)


def _objects_differ(left: _Side, right: _Side, name: str) -> str:
    """Compare the parts of two pickles; where they differ the objects may still be equal."""
    pair = []
    for side in (left, right):
        (each,) = side.slices[name][:1]
        content = side.content(each)
        pair.append(
            {
                part.name.partition("/")[2]: bytes(content[part.start : part.start + part.size])
                for part in parts(content)
            }
        )
    return "" if pair[0] == pair[1] else "the pickles of the object differ"


def _tensors_differ(left: _Side, right: _Side, name: str, itemsize: int) -> str:
    theirs = [(each, right.elements(each, itemsize)) for each in right.slices[name]]
    for mine in left.slices[name]:
        elements = left.elements(mine, itemsize)
        for other, other_elements in theirs:
            for start, begin, count in _common_rows(mine, other):
                a = elements[start * itemsize : (start + count) * itemsize]
                b = other_elements[begin * itemsize : (begin + count) * itemsize]
                if a != b:
                    return f"elements differ in {mine.file} and {other.file}"
    return ""


def _common_rows(one: Slice, other: Slice) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of elements that two shards share: where each begins in both, its length."""
    boxes = [(each.begin or (), each.sizes or ()) for each in (one, other)]
    low = tuple(map(max, *(begin for begin, _ in boxes)))
    high = tuple(map(min, *(map(add, begin, sizes) for begin, sizes in boxes)))
    if any(map(le, high, low)):
        return
    if not low:
        yield 0, 0, 1
        return
    # Dimensions that the common box fills in both shards run together with the one before them.
    inner = len(low) - 1
    while inner and all(high[inner] - low[inner] == sizes[inner] for _, sizes in boxes):
        inner -= 1
    run = prod(map(sub, high[inner:], low[inner:]))
    for outer in product(*map(range, low[:inner], high[:inner])):
        place = (*outer, *low[inner:])
        mine, theirs = (
            sum(map(mul, map(sub, place, begin), _row_strides(sizes))) for begin, sizes in boxes
        )
        yield mine, theirs, run


def _row_strides(sizes: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return strides[::-1]


def _in_rows(data: memoryview, layout: Layout, itemsize: int) -> memoryview:
    """Return the elements in the order of rows, copied only where they are stored otherwise."""
    count = prod(layout.sizes)
    rows = _row_strides(layout.sizes)
    last = layout.offset + sum(
        (n - 1) * s for n, s in zip(layout.sizes, layout.strides, strict=True)
    )
    if (last + 1) * itemsize > len(data):
        raise DamagedSliceError("its elements lie beyond the end of its bytes")
    pairs = zip(layout.sizes, layout.strides, rows, strict=True)
    if all(size == 1 or stride == row for size, stride, row in pairs):
        return data[layout.offset * itemsize : (layout.offset + count) * itemsize]
    if itemsize not in _FORMATS:
        raise DamagedSliceError(f"elements of {itemsize} bytes that are not stored row by row")
    whole = data[: len(data) // itemsize * itemsize]
    # mypy takes no format that it cannot read in the call itself.
    elements: memoryview = whole.cast(_FORMATS[itemsize])  # type: ignore[call-overload]
    size, step = layout.sizes[-1], layout.strides[-1]
    found = bytearray()
    for outer in product(*map(range, layout.sizes[:-1])):
        start = layout.offset + sum(i * s for i, s in zip(outer, layout.strides, strict=False))
        if step:
            found += elements[start : start + (size - 1) * step + 1 : step].tobytes()
        else:
            found += elements[start : start + 1].tobytes() * size
    return memoryview(bytes(found))
