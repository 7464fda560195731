"""What is in a checkpoint, read by a limited process (``limited``) that executes nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from keepstep.checkpoint.columns import unpack, unpack_sizes
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.names import DTYPES

_PROGRAM = (
    "import sys; sys.path.insert(0, {!r}); from keepstep.checkpoint.limited import main; main()"
)
_ROOT = str(Path(__file__).parent.parent.parent)

# A process under heavy load gets little of the processor; its own limit counts processor time.
_PATIENCE_S = 600


class Tensor(NamedTuple):  # many are made: a dataclass takes longer
    """A tensor of a checkpoint; ``shape`` is the whole tensor's, in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: int
    strides: tuple[int, ...] | None  # of the live tensor, or of one shard of a DTensor

    @property
    def bytes(self) -> int:
        """Size of its elements; 0 where the dtype packs several into a byte."""
        return prod(self.shape) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What the metadata says about a data file: slices, their bytes, and where the last ends."""

    slices: int
    bytes: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the metadata of a checkpoint says."""

    version: str | None  # of the metadata; "1.0.0" since PyTorch 2.9
    planner: bool  # whether a planner left the map from flat names to the nested state dict
    storage_meta: dict[str, Any] | None  # since 2.4: checkpoint_id, save_id, ...
    fields: tuple[int, ...]  # lengths of the tensor properties: 5, or 6 since 2.15
    tensors: tuple[Tensor, ...]
    objects: tuple[str, ...]
    files: dict[str, StoredFile]
    transformed: tuple[str, ...]  # items that an extension has compressed or encrypted


@dataclass(frozen=True, slots=True)
class Slice:
    """One stored item, or one shard of a tensor. ``begin`` and ``sizes`` in elements."""

    name: str
    file: str
    offset: int  # in the file, in bytes
    length: int
    begin: tuple[int, ...] | None  # None for an object
    sizes: tuple[int, ...] | None
    transformed: bool


def read_contents(file: BinaryIO) -> Contents:
    """Return what the metadata in an open file says.

    Raises:
        UnsafeMetadataError: It is damaged or hostile, or needs more than any real one.
    """
    return _contents(ask(file, "summary")["summary"])


def read_slices(file: BinaryIO) -> tuple[Contents, list[Slice], list[str]]:
    """Return also every stored slice, and what does not fit together."""
    answer = ask(file, "summary", "placement")
    found = answer["placement"]
    items = found["items"]
    columns = ("item", "file", "offset", "length", "begin", "sizes", "transformed")
    slices = [
        Slice(items[item], name, offset, length, _tuple(begin), _tuple(sizes), transformed)
        for item, name, offset, length, begin, sizes, transformed in zip(
            *(found[column] for column in columns), strict=True
        )
    ]
    return _contents(answer["summary"]), slices, found["problems"]


def ask(file: BinaryIO, *tasks: str) -> dict[str, Any]:
    """Let the limited process do tasks on a real file, from its beginning."""
    return answer_of(start(file, *tasks))


def start(file: BinaryIO, *tasks: str) -> subprocess.Popen[bytes]:
    """Start the limited process; ``answer_of`` waits for it."""
    file.seek(0)
    # -I and -S: no variable and no file of the user's or the environment's changes what it imports.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM.format(_ROOT), *tasks],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answer_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what a limited process found out.

    Raises:
        UnsafeMetadataError: It refused, or ran into its limits.
    """
    try:
        output, complaint = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise UnsafeMetadataError(f"reading it took more than {_PATIENCE_S} s") from None
    if process.returncode < 0:
        raise UnsafeMetadataError(
            "reading it took more time than the metadata of any checkpoint of this size "
            f"(signal {-process.returncode}): hostile or damaged"
        )
    if process.returncode or not output:
        raise UnsafeMetadataError(
            "reading it took more memory than the metadata of any checkpoint of this size: "
            f"hostile or damaged ({complaint.decode(errors='replace').strip()[-200:]})"
        )
    answer: dict[str, Any] = json.loads(output)
    if "refused" in answer:
        raise UnsafeMetadataError(answer["refused"])
    return answer


@contextmanager
def _no_collector() -> Iterator[None]:
    """Let no garbage be looked for: it takes as long as making a million objects without cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_no_collector()
def _contents(found: dict[str, Any]) -> Contents:
    kinds, numbers = found["dtypes"]
    columns = (
        found["names"],
        map(kinds.__getitem__, unpack(numbers)),
        unpack_sizes(found["shapes"]),
        unpack(found["shards"]),
        unpack_sizes(found["strides"]),
    )
    return Contents(
        version=found["version"],
        planner=found["planner"],
        storage_meta=found["storage_meta"],
        fields=tuple(found["fields"]),
        tensors=tuple(starmap(Tensor, zip(*columns, strict=True))),
        objects=tuple(found["objects"]),
        files=files_of(found),
        transformed=tuple(found["transformed"]),
    )


def files_of(summary: dict[str, Any]) -> dict[str, StoredFile]:
    """Return the data files that the summary of a metadata file names."""
    return {name: StoredFile(*counts) for name, counts in summary["files"].items()}


def _tuple(value: list[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)
