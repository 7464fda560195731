"""Metadata of distributed checkpoints of any size, byte for byte as PyTorch would pickle it.

Stand-ins with the names of PyTorch's classes are pickled by the standard library, so neither torch
nor the data files of a large model are needed.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import PosixPath
from types import ModuleType
from typing import Any

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class _Size(tuple[int, ...]):
    def __reduce__(self) -> tuple[Any, ...]:
        return (_Size, (tuple(self),))


class _Named:
    """Something that torch pickles as a bare name: a dtype."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


def _get_layout(name: str) -> Any:
    raise AssertionError("only pickled, never called")


class _Layout:
    def __reduce__(self) -> tuple[Any, ...]:
        return (_get_layout, ("torch.strided",))


class _MemoryFormat(Enum):
    CONTIGUOUS = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_MemoryFormat, (self.value,))


class _Properties:
    def __init__(self, dtype: str, strides: tuple[int, ...] | None, fields: int) -> None:
        self.state = (DTYPES[dtype], LAYOUT, False, _MemoryFormat.CONTIGUOUS, False, strides)
        self.fields = fields

    def __getstate__(self) -> tuple[Any, ...]:
        return self.state[: self.fields]


class _Record:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class _Metadata(_Record):
    pass


class _Tensor(_Record):
    pass


class _Bytes(_Record):
    pass


class _Chunk(_Record):
    pass


class _Index(_Record):
    pass


class _StorageInfo(_Record):
    pass


class _StorageMeta(_Record):
    pass


LAYOUT = _Layout()
DTYPES = {name: _Named(name) for name in ("float32", "bfloat16", "int64")}

# What each stand-in is called in the pickle.
_NAMES: dict[type | Any, tuple[str, str]] = {
    _Size: ("torch", "Size"),
    _get_layout: ("torch.serialization", "_get_layout"),
    _MemoryFormat: (METADATA, "_MEM_FORMAT_ENCODING"),
    _Properties: (METADATA, "TensorProperties"),
    _Metadata: (METADATA, "Metadata"),
    _Tensor: (METADATA, "TensorStorageMetadata"),
    _Bytes: (METADATA, "BytesStorageMetadata"),
    _Chunk: (METADATA, "ChunkStorageMetadata"),
    _Index: (METADATA, "MetadataIndex"),
    _StorageInfo: (FILESYSTEM, "_StorageInfo"),
    _StorageMeta: (METADATA, "StorageMeta"),
}


@contextlib.contextmanager
def _torch_names() -> Iterator[None]:
    """Let the pickler find the stand-ins under the names of PyTorch's own classes."""
    names = {module for module, _ in _NAMES.values()}
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update({name: ModuleType(name) for name in names})  # also where torch is loaded
    for thing, (module, name) in _NAMES.items():
        thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
        setattr(sys.modules[module], name, thing)
    for name, dtype in DTYPES.items():
        dtype.__module__ = "torch"
        setattr(sys.modules["torch"], name, dtype)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def metadata(
    tensors: int,
    shards: int,
    *,
    objects: int = 0,
    fields: int = 6,
    slice_bytes: int = 1577,
    files: int = 64,
) -> bytes:
    """Return the pickled metadata of ``tensors`` tensors of ``shards`` shards each.

    ``fields`` is the length of the tensor properties: 6 from PyTorch 2.15 on, 5 before.
    """
    state: dict[str, Any] = {f"object.{n}": _Bytes() for n in range(objects)}
    storage: dict[Any, Any] = {}
    ends = [0] * files

    def place(index: _Index) -> None:
        file = len(storage) % files
        storage[index] = _StorageInfo(
            relative_path=f"__{file}_0.distcp", offset=ends[file], length=slice_bytes
        )
        ends[file] += slice_bytes

    for name in state:
        place(_Index(fqn=name, offset=None, index=None))
    for number in range(tensors):
        name = f"model.layers.{number}.self_attention.weight"
        chunks = [_Chunk(offsets=_Size((n, 0)), sizes=_Size((1, 4))) for n in range(shards)]
        state[name] = _Tensor(
            properties=_Properties("float32", (4, 1), fields),
            size=_Size((shards, 4)),
            chunks=chunks,
        )
        for n in range(shards):
            place(_Index(fqn=name, index=n, offset=_Size((n, 0))))
    whole = _Metadata(
        state_dict_metadata=state,
        planner_data={name: (name,) for name in state},
        storage_data=storage,
        storage_meta=_StorageMeta(
            checkpoint_id=PosixPath("run/step-100"), save_id="0" * 36, load_id=None, modules=[]
        ),
        version="1.0.0",
    )
    with _torch_names():
        return pickle.dumps(whole, protocol=4)
