"""Loads a checkpoint with the PyTorch of whichever interpreter runs this, and digests it.

This file is sent to that interpreter as text: it imports the standard library and torch only, and
keeps to what Python 3.8 and PyTorch 2.2 understand. Every tensor goes through PyTorch's own reader,
one stored shard at a time, and is dropped when it has been digested: memory is bounded by the
largest shard and the metadata.

It answers in lines of JSON on standard output: ``{"read": bytes}`` now and then, and at the end
``{"result": ...}``. Whatever else prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import json
import os
import resource
import runpy
import sys
import time
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any, TextIO

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import _nested_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

_REPORT_BYTES = 64 << 20  # how much is read between two lines about progress


class DigestingPlanner(LoadPlanner):
    """Asks for every stored shard and object as a whole, digests each, keeps none."""

    def __init__(self, answer: TextIO) -> None:
        self._answer = answer
        self._read = self._reported = 0
        self.metadata: Metadata | None = None
        self.shards: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], str]]] = {}
        self.objects: dict[str, str] = {}
        self._order: list[str] = []  # names of the reads, in the reader's order
        self._done = 0

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Keep the metadata; the state dict is empty."""
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        """Return one read for each shard that holds an element, and for each object."""
        items = []
        for name, entry in _entries(self.metadata).items():
            if isinstance(entry, BytesStorageMetadata):
                index = MetadataIndex(name)
                whole = torch.Size((0,))
                items.append(ReadItem(LoadItemType.BYTE_IO, index, whole, index, whole, whole))
                continue
            self.shards[name] = []
            for position, chunk in enumerate(entry.chunks):
                if 0 in chunk.sizes:  # PyTorch reads none of these either
                    self.shards[name].append(_shard(chunk.offsets, chunk.sizes, hashlib.sha256()))
                    continue
                index = MetadataIndex(name, chunk.offsets, position)
                begin = torch.Size([0] * len(chunk.sizes))
                items.append(ReadItem(LoadItemType.TENSOR, index, begin, index, begin, chunk.sizes))
        items.sort(key=self._place)
        self._order = [item.dest_index.fqn for item in items]
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Unpickle an object as a load does, and digest its bytes."""
        # On the CPU: the machine that tests need not have the devices of the one that trained.
        torch.load(value, map_location="cpu", weights_only=False)
        digest = hashlib.sha256(value.getbuffer())
        self.objects[read_item.dest_index.fqn] = digest.hexdigest()
        self._count(len(value.getbuffer()))

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Return memory for one shard."""
        entry = _entries(self.metadata)[read_item.dest_index.fqn]
        return torch.empty(read_item.lengths, dtype=entry.properties.dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Digest the shard that was read."""
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        # Its memory, and not numpy: numpy may be missing, and does not know every dtype.
        content = (ctypes.c_char * size).from_address(tensor.data_ptr())
        index = read_item.dest_index
        shard = _shard(index.offset or (), tensor.shape, hashlib.sha256(content))
        self.shards[index.fqn].append(shard)
        self._count(size)

    def digests(self) -> dict[str, str]:
        """Return the digest of each entry: of a tensor over dtype, shape and its shards."""
        found = dict(self.objects)
        for name, shards in self.shards.items():
            entry = _entries(self.metadata)[name]
            says = [str(entry.properties.dtype), list(entry.size), sorted(shards)]
            found[name] = hashlib.sha256(json.dumps(says).encode()).hexdigest()
        return found

    def _place(self, item: ReadItem) -> tuple[str, int]:
        """Return where an item is stored: the reader takes one file after the other."""
        assert self.metadata is not None, "it was set before the plan"
        stored = self.metadata.storage_data[item.storage_index]
        return stored.relative_path, getattr(stored, "offset", 0)  # safetensors files have none

    def _count(self, size: int) -> None:
        self._done += 1
        self._read += size
        if self._read - self._reported >= _REPORT_BYTES:
            self._reported = self._read
            _say(self._answer, read=self._read)

    @property
    def reading(self) -> str:
        """The entry whose turn it is; "" before and after all reads."""
        return self._order[self._done] if self._done < len(self._order) else ""

    @property
    def read(self) -> int:
        """Bytes of shards and objects so far."""
        return self._read


def load(request: dict[str, Any], answer: TextIO) -> dict[str, Any]:
    """Load the checkpoint that is asked for; with ``keys_from`` compare the trainer's state too."""
    began = time.monotonic()
    result: dict[str, Any] = {"digests": {}, "tensors": 0, "objects": 0, "bytes": 0}
    entries: dict[str, Any] = {}
    for rank in request["ranks"]:
        planner = DigestingPlanner(answer)
        reader: Any = None
        try:
            reader = _reader(request["address"], request["kind"], rank)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one process is what is wanted here
                _load(reader, planner)
        except (Exception, checkpoint.CheckpointException) as error:
            result["error"] = _error(getattr(reader, "failure", None) or error, planner)
            return result
        prefix = "" if rank is None else f"rank {rank}: "
        for name, digest in planner.digests().items():
            result["digests"][prefix + name] = digest
        result["tensors"] += len(planner.shards)
        result["objects"] += len(planner.objects)
        result["bytes"] += planner.read
        entries.update(_entries(planner.metadata))
    result["seconds"] = time.monotonic() - began
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if request["keys_from"]:
        result["keys"] = _compare_keys(request["keys_from"], entries)
    return result


def _load(reader: Any, planner: DigestingPlanner) -> None:
    if "coordinator_rank" in inspect.signature(checkpoint.load).parameters:
        # PyTorch 2.2, whose load wants a process group; this is what it calls, and needs none.
        checkpoint.load_state_dict({}, reader, no_dist=True, planner=planner)
    else:
        checkpoint.load({}, storage_reader=reader, planner=planner)


def _reader(address: str, kind: str, rank: int | None) -> Any:
    """Return PyTorch's own reader, which does not fall back to metadata of another save."""
    base: Any = checkpoint.FileSystemReader
    if kind == "huggingface":
        base = checkpoint.HuggingFaceStorageReader
    elif "://" in address:
        base = _remote().FsspecReader

    # Its base is known only when it runs.
    class Reader(base):  # type: ignore[misc]
        failure: Exception | None = None

        def read_metadata(self, *arguments: Any, **keywords: Any) -> Any:
            if self.failure is not None:
                raise self.failure
            if rank is not None:
                keywords["rank"] = rank
            try:
                return super().read_metadata(*arguments, **keywords)
            except Exception as error:
                self.failure = error
                raise

    return Reader(address)


def _remote() -> ModuleType:
    home = "torch.distributed.checkpoint."
    try:
        return import_module(home + "fsspec_filesystem")
    except ModuleNotFoundError:  # its name up to 2.14
        return import_module(home + "_fsspec_filesystem")


def _error(error: BaseException, planner: DigestingPlanner) -> dict[str, str]:
    """Return what went wrong first; PyTorch wraps it in a CheckpointException."""
    if isinstance(error, checkpoint.CheckpointException):
        error = next((first for first, _ in error.failures.values()), error)
    return {
        "type": type(error).__name__,
        "text": str(error),
        "entry": planner.reading,
        "at": "metadata" if planner.metadata is None else "data",
    }


def _compare_keys(script: str, entries: dict[str, Any]) -> dict[str, Any]:
    """Compare the checkpoint with what ``state_dict()`` of a script returns."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        found = runpy.run_path(script)
        if not callable(found.get("state_dict")):
            return {"usage": "it defines no function state_dict()"}
        wanted = _flattened(found["state_dict"](), entries)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    different = {
        name: _difference(wanted[name], entries[name]) for name in wanted if name in entries
    }
    return {
        "compared": len(different),
        "missing": sorted(name for name in wanted if name not in entries),
        "unexpected": sorted(name for name in entries if name not in wanted),
        "different": {name: text for name, text in different.items() if text},
    }


def _flattened(state: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Return the state under the names that this PyTorch gives to its entries."""
    state = {
        name: value.state_dict() if isinstance(value, checkpoint.stateful.Stateful) else value
        for name, value in state.items()
    }
    flat, _ = _nested_dict.flatten_state_dict(state)
    if set(flat) >= set(entries) or not hasattr(_nested_dict, "_version"):
        return flat
    # Names were made in another way up to 2.3, and PyTorch from 2.4 on tries these too.
    _nested_dict._version._derived_version = "2_3"
    old, _ = _nested_dict.flatten_state_dict(state)
    _nested_dict._version._derived_version = None
    return old if set(old) & (set(entries) - set(flat)) else flat


def _difference(value: Any, entry: Any) -> str:
    kinds = ("an object", "a tensor")
    tensor = callable(getattr(value, "size", None)) and hasattr(value, "dtype")
    saved = isinstance(entry, TensorStorageMetadata)
    if tensor is not saved:
        return f"kind: {kinds[saved]} saved, {kinds[tensor]} wanted"
    if not tensor:
        return ""
    if tuple(value.size()) != tuple(entry.size):
        return f"shape: {list(entry.size)} saved, {list(value.size())} wanted"
    if value.dtype != entry.properties.dtype:
        return f"dtype: {entry.properties.dtype} saved, {value.dtype} wanted"
    return ""


def _entries(metadata: Metadata | None) -> dict[str, Any]:
    assert metadata is not None, "PyTorch sets a planner up before it uses it"
    return metadata.state_dict_metadata


def _shard(offsets: Any, sizes: Any, digest: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    return tuple(offsets), tuple(sizes), digest.hexdigest()


def _say(answer: TextIO, **facts: Any) -> None:
    answer.write(json.dumps(facts) + "\n")
    answer.flush()


def main() -> None:
    """Answer the request in the first argument."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        _say(answer, result=load(json.loads(sys.argv[1]), answer))


if __name__ == "__main__":
    main()
