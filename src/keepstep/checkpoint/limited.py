"""Reads checkpoint metadata in a process of its own, with limits; the program of ``contents``.

``pickle`` does the work at the speed of C, but every name in the file leads to one of the stand-ins
below: nothing of torch, nothing that acts. What such a file can still do is take memory and time,
and the kernel bounds both.
"""

from __future__ import annotations

import gc
import hashlib
import json
import marshal
import mmap
import os
import pickle
import resource
import signal
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from keepstep.checkpoint.columns import all_of, pack, pack_sizes
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.names import ALLOWED, DTYPES
from keepstep.checkpoint.opcodes import check_opcodes

# The lean stand-ins below need 7 to 9 bytes a byte of metadata; then come the columns.
_MEMORY = 128 << 20, 14  # bytes, and bytes a byte of metadata
_TIME = 2.0, 3e-7  # seconds of processor time, and seconds a byte of metadata

_SHOWN = 100  # problems that are reported one by one


# Each class empties the state of its objects: pickle would keep it, and it is most of the memory.
# Not in a function of its own, because a call costs as much as all the rest.


class Chunk:
    """A shard: where it begins in the tensor, and its shape."""

    __slots__ = ("offsets", "sizes")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.offsets, self.sizes = state["offsets"], state["sizes"]
        if len(state) != 2:
            raise _unknown_fields(state)
        state.clear()


class Index:
    """Names a stored item. Compared by identity: a file cannot make hashing expensive."""

    __slots__ = ("fqn", "index", "offset")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fqn = state["fqn"]
        if len(state) == 3:
            self.index, self.offset = state["index"], state["offset"]
        else:
            self.index, self.offset = state.get("index"), state.get("offset")
            if len(state) != 1 + ("index" in state) + ("offset" in state):
                raise _unknown_fields(state)
        state.clear()


class StorageInfo:
    """Where an item is stored."""

    __slots__ = ("length", "offset", "relative_path", "transforms")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.relative_path = state["relative_path"]
        self.offset = state["offset"]
        self.length = state["length"]
        self.transforms = state["transform_descriptors"] if len(state) > 3 else None
        if len(state) > 4:
            raise _unknown_fields(state)
        state.clear()


class Properties:
    """dtype, layout, requires_grad, memory format, pin_memory and, since 2.15, strides."""

    __slots__ = ("state",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if type(state) is not tuple or len(state) not in (5, 6):
            raise UnsafeMetadataError("tensor properties of an unknown form")
        self.state = state


class Tensor:
    """A tensor: its properties, its shape and its shards."""

    __slots__ = ("chunks", "properties", "size")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.properties = state["properties"]
        self.size = state["size"]
        self.chunks = state["chunks"]
        if len(state) != 3:
            raise _unknown_fields(state)
        state.clear()


class Object:
    """Anything that is no tensor."""

    __slots__ = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if type(state) is not dict or state:
            raise UnsafeMetadataError("an object that is no tensor, with fields")


class Record:
    """The outermost object, and StorageMeta: versions differ in their fields."""

    __slots__ = ("state",)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if type(state) is not dict:
            raise UnsafeMetadataError("fields without names")
        self.state = dict(state)


def _unknown_fields(state: dict[str, Any]) -> UnsafeMetadataError:
    return UnsafeMetadataError(f"an object with unknown fields among {list(state)!s:.200}")


def _layout(name: str) -> str:
    return name


def _memory_format(code: int) -> int:
    return code


def _path(*parts: str) -> str:
    return os.path.join(*parts)


_STAND_INS: dict[str, Any] = {
    "Metadata": Record,
    "StorageMeta": Record,
    "TensorStorageMetadata": Tensor,
    "BytesStorageMetadata": Object,
    "ChunkStorageMetadata": Chunk,
    "TensorProperties": Properties,
    "MetadataIndex": Index,
    "_StorageInfo": StorageInfo,
    "MEM_FORMAT_ENCODING": _memory_format,
    "_MEM_FORMAT_ENCODING": _memory_format,
    "Size": tuple,  # of a tuple, it returns that same tuple
    "_get_layout": _layout,
    "PosixPath": _path,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module}.{name}")
        if (module, name) not in ALLOWED:
            raise UnsafeMetadataError(
                f"the metadata names {module!s:.200}.{name!s:.200}: "
                "no PyTorch writes that into a checkpoint"
            )
        return _STAND_INS.get(name, name)  # a dtype is its name


def load(file: Any) -> dict[str, Any]:
    """Return the fields of the metadata in an open file.

    Raises:
        UnsafeMetadataError: Damaged or hostile.
    """
    try:
        unpickler = _Unpickler(file)
        whole = unpickler.load()
    except UnsafeMetadataError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UnsafeMetadataError(f"damaged: {type(error).__name__}: {error!s:.300}") from None
    fields = whole.state if type(whole) is Record else None
    if fields is None or type(fields.get("state_dict_metadata")) is not dict:
        raise UnsafeMetadataError("the pickle does not hold the metadata of a checkpoint")
    if type(fields.get("storage_data")) is not dict:
        raise UnsafeMetadataError("the metadata does not say where anything is stored")
    return {**fields, _NAMES: sorted(unpickler.names)}


def summarise(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what is in a checkpoint as columns of plain values."""
    items: dict[str, Any] = fields["state_dict_metadata"]
    if not all_of(items.values(), Tensor, Object):
        raise UnsafeMetadataError("an item that is neither a tensor nor an object")
    if not all_of(items, str):
        raise UnsafeMetadataError("a name that is no text")
    meta = fields.get("storage_meta")
    return {
        "classes": fields[_NAMES],
        "version": _text_or_none(fields.get("version")),
        "planner": type(fields.get("planner_data")) is dict,
        "storage_meta": meta.state if type(meta) is Record else None,
        "names": [name for name, item in items.items() if type(item) is Tensor],
        "objects": [name for name, item in items.items() if type(item) is Object],
        **_columns([item for item in items.values() if type(item) is Tensor]),
        **_files(fields["storage_data"]),
    }


def _columns(tensors: list[Tensor]) -> dict[str, Any]:
    """Return what is known of each tensor. Checked by the column, which C does, not one by one."""
    properties = [tensor.properties for tensor in tensors]
    chunks = [tensor.chunks for tensor in tensors]
    sizes = [tensor.size for tensor in tensors]
    if not (all_of(properties, Properties) and all_of(chunks, list) and all_of(sizes, tuple)):
        raise UnsafeMetadataError("a tensor of an unknown form")
    states = [each.state for each in properties]
    dtypes = [state[0] for state in states]
    if not all_of(dtypes, str) or not DTYPES.keys() >= set(dtypes):
        raise UnsafeMetadataError("a tensor of an unknown dtype")
    kinds = {dtype: number for number, dtype in enumerate(sorted(set(dtypes)))}
    return {
        "dtypes": (list(kinds), pack([kinds[dtype] for dtype in dtypes])),
        "fields": sorted(set(map(len, states))),
        "shapes": pack_sizes(sizes),
        "strides": pack_sizes([state[5] if len(state) == 6 else None for state in states]),
        "shards": pack(list(map(len, chunks))),
    }


def _files(storage: dict[Any, Any]) -> dict[str, Any]:
    files: dict[str, list[int]] = {}
    transformed: list[str] = []
    for key, info in storage.items():
        if type(key) is not Index or type(info) is not StorageInfo:
            raise UnsafeMetadataError("a stored item of an unknown kind")
        offset, length = info.offset, info.length
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise UnsafeMetadataError("a stored item at an impossible place")
        file = files.get(info.relative_path)
        if file is None:
            file = files[_text(info.relative_path)] = [0, 0, 0]
        file[0] += 1
        file[1] += length
        if offset + length > file[2]:
            file[2] = offset + length
        if info.transforms and len(transformed) < _SHOWN:
            transformed.append(_text(key.fqn))
    return {"files": files, "transformed": transformed}


def place(fields: dict[str, Any]) -> dict[str, Any]:
    """Return every stored slice as columns, and what does not fit together in the metadata."""
    items = fields["state_dict_metadata"]
    numbers = {name: number for number, name in enumerate(items)}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("item", "file", "offset", "length", "begin", "sizes", "transformed")
    }
    problems: list[str] = []
    seen: dict[str, int] = {}
    for key, info in fields["storage_data"].items():
        item = items.get(key.fqn)
        if item is None:
            problems.append(f"{key.fqn}: stored in {info.relative_path}, and no item has this name")
            continue
        seen[key.fqn] = seen.get(key.fqn, 0) + 1
        chunk = _chunk(item, key) if type(item) is Tensor else None
        if chunk is None and type(item) is Tensor:
            problems.append(f"{key.fqn}: {info.relative_path} stores a shard that it does not have")
        columns["item"].append(numbers[key.fqn])
        columns["file"].append(info.relative_path)
        columns["offset"].append(info.offset)
        columns["length"].append(info.length)
        columns["begin"].append(chunk and chunk.offsets)
        columns["sizes"].append(chunk and chunk.sizes)
        columns["transformed"].append(bool(info.transforms))
    for name, item in items.items():
        problems.extend(_gaps(name, item, seen.get(name, 0)))
    return {"items": list(items), **columns, "problems": problems[:_SHOWN]}


def _chunk(tensor: Tensor, key: Index) -> Chunk | None:
    """Return the shard that a stored item is; its index is a hint, as for PyTorch itself."""
    chunks = tensor.chunks
    if type(key.index) is int and 0 <= key.index < len(chunks):
        chunk = chunks[key.index]
        if type(chunk) is Chunk and chunk.offsets == key.offset:
            return chunk
    return next((each for each in chunks if each.offsets == key.offset), None)


def _gaps(name: str, item: Any, stored: int) -> list[str]:
    """Return what is missing of an item: shards that are not stored, elements without a shard."""
    if type(item) is not Tensor:
        return [] if stored else [f"{name}: it is stored nowhere"]
    found = []
    shape = _sizes(item.size)
    covered = 0
    for chunk in item.chunks:
        begin, sizes = _sizes(chunk.offsets), _sizes(chunk.sizes)
        covered += _elements(sizes)
        fits = len(begin) == len(sizes) == len(shape)
        if not fits or any(b + s > n for b, s, n in zip(begin, sizes, shape, strict=True)):
            found.append(f"{name}: a shard at {begin} of shape {sizes} leaves its shape {shape}")
    wanted = _elements(shape)
    if covered != wanted:
        found.append(f"{name}: its shards hold {covered} of {wanted} elements")
    if stored < len(item.chunks):
        found.append(f"{name}: {len(item.chunks) - stored} of its shards are stored nowhere")
    return found


def _elements(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def objects(fields: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """Return name, file, offset and length of everything stored that is no tensor."""
    items = fields["state_dict_metadata"]
    return [
        (_text(key.fqn), _text(info.relative_path), info.offset, info.length)
        for key, info in fields["storage_data"].items()
        if type(items.get(key.fqn)) is Object
    ]


def digest(fields: dict[str, Any]) -> dict[str, str]:
    """Return a SHA-256 of each part of the metadata; strides are in none of them."""
    items = fields["state_dict_metadata"]
    meta = fields.get("storage_meta")
    return {
        "items": _sha256((name, *_plain_item(item)) for name, item in items.items()),
        "storage": _sha256(
            (_stored(key, info) for key, info in fields["storage_data"].items()),
        ),
        "planner": _sha256([fields.get("planner_data")]),
        "storage_meta": _sha256([meta.state if type(meta) is Record else meta]),
        "rest": _sha256(
            [sorted((k, v) for k, v in fields.items() if k not in _PARTS)],
        ),
    }


def alone(fields: dict[str, Any]) -> bool:
    """Tell whether the state of each tensor's properties is in use nowhere else in the file."""
    fresh = Properties()
    fresh.__setstate__(tuple([None] * 5))  # from a list, or it would be a constant of this code
    once = sys.getrefcount(fresh.state)
    return all(
        sys.getrefcount(item.properties.state) == once
        for item in fields["state_dict_metadata"].values()
        if type(item) is Tensor
    )


_NAMES = "names of classes"  # not a field of the metadata: what the file names
_PARTS = (_NAMES, "state_dict_metadata", "storage_data", "planner_data", "storage_meta")


def _stored(key: Index, info: StorageInfo) -> tuple[Any, ...]:
    where = (info.relative_path, info.offset, info.length, info.transforms)
    return (key.fqn, key.offset, key.index, where)


def _plain_item(item: Any) -> tuple[Any, ...]:
    if type(item) is Object:
        return ()
    chunks = [part for chunk in item.chunks for part in (chunk.offsets, chunk.sizes)]
    return (*item.properties.state[:5], item.size, chunks)


def _sha256(values: Iterable[Any]) -> str:
    """Hash plain values. Version 0 of marshal writes equal values to equal bytes."""
    found = hashlib.sha256()
    iterator = iter(values)
    try:
        while batch := list(islice(iterator, 1000)):
            found.update(marshal.dumps(batch, 0))
    except ValueError:
        raise UnsafeMetadataError("it holds objects where only plain values belong") from None
    return found.hexdigest()


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or any(type(size) is not int or size < 0 for size in value):
        raise UnsafeMetadataError("a shape that is no tuple of sizes")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise UnsafeMetadataError("a name that is no text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


TASKS = {
    "objects": objects,
    "summary": summarise,
    "placement": place,
    "digest": digest,
    "alone": alone,
}


def limit(size: int) -> None:
    """Bound this process for a file of ``size`` bytes: memory, processor time, everything else."""
    memory = int(_MEMORY[0] + _MEMORY[1] * size)
    seconds = int(_TIME[0] + _TIME[1] * size) + 1
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    for nothing in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(nothing, (0, 0))


def main() -> None:
    """Do the tasks named on the command line for the file on standard input; answer in JSON."""
    tasks = sys.argv[1:]
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit(os.fstat(0).st_size)
    gc.disable()  # nothing here forms cycles, and looking for them costs several times the work
    try:
        answer = json.dumps(_answer(tasks))
    except UnsafeMetadataError as error:
        answer = json.dumps({"refused": str(error)})
    except (MemoryError, RecursionError) as error:
        answer = json.dumps({"refused": f"it needs too much memory ({type(error).__name__})"})
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        # An object that lacks what every real one has, or a value that JSON does not know.
        answer = json.dumps({"refused": f"damaged: {type(error).__name__}: {error!s:.300}"})
    sys.stdout.write(answer)
    sys.stdout.flush()
    os._exit(0)  # freeing millions of objects one by one takes a second and serves nobody


def _answer(tasks: list[str]) -> dict[str, Any]:
    with open(0, "rb", closefd=False) as file:
        if os.fstat(0).st_size == 0:
            raise UnsafeMetadataError("the file is empty")
        if "unchecked" not in tasks:
            with mmap.mmap(0, 0, access=mmap.ACCESS_READ) as data:
                check_opcodes(data)
        fields = load(file)
    found: dict[str, Any] = {}
    for task in tasks:
        if task in TASKS:
            found |= {task: TASKS[task](fields)}
    return found
