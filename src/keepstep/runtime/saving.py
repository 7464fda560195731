"""One distributed checkpoint: what each rank writes, and how the parts become a whole.

The format is PyTorch's own (``torch.distributed.checkpoint``), its collectives are not used: a rank
may be lost in the middle of a save, and nothing of a save may hold a recovery up. Every rank knows
the replicated state, so each finds by itself which tensors are its own to write. What it has
written it says in a small file beside its data; rank 0 reads these and writes the metadata.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.storage import WriteResult

from keepstep.checkpoint.writer_old import writer
from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.exchange import share_out
from keepstep.runtime.state import Encoded, digest_of, dump_manifest, outline
from keepstep.runtime.step_folders import RECORD
from keepstep.whole import write_whole

FORMAT = 1  # of the file RECORD


class GivenUpError(Exception):
    """This save will not become a checkpoint; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """What rank 0 needs to know of the tensors that others write. The shapes are in elements."""

    tree: Any
    tensors: list[tuple[str, torch.dtype, tuple[int, ...]]]
    objects: dict[str, Any]  # copies of all that is no tensor, by name
    paths: dict[str, tuple[Any, ...]]  # name -> place in the nested state


@dataclass(kw_only=True, slots=True)
class Share:
    """What one rank has to write, in memory that no step changes."""

    step: int
    rank: int
    world_size: int
    folder: Path
    tensors: dict[str, torch.Tensor]
    record: bytes  # the rank's own state
    whole: Whole | None = None  # on rank 0


@dataclass(slots=True)
class Stage:
    """Memory of the host into which a rank copies its share; the next save uses it again."""

    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def copy(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return copies in host memory, complete when this returns."""
        self._buffers = {name: self._room(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()
        return self._buffers

    def _room(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        room = self._buffers.get(name)
        if room is not None and (room.shape, room.dtype) == (tensor.shape, tensor.dtype):
            return room
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def take_share(
    values: dict[str, Any],
    record: bytes,
    stage: Stage,
    *,
    step: int,
    rank: int,
    world_size: int,
    folder: Path,
) -> Share:
    """Copy what this rank has to write of the replicated state ``values``.

    Raises:
        ValueError: two entries of the state would get one name in the checkpoint.
    """
    found = outline(values)
    own = share_out([tensor.nbytes for tensor in found.tensors], world_size)[rank]
    if rank == 0:
        own = own + [index for index, tensor in enumerate(found.tensors) if tensor.nbytes == 0]
    return Share(
        step=step,
        rank=rank,
        world_size=world_size,
        folder=folder,
        tensors=stage.copy({found.names[index]: found.tensors[index] for index in own}),
        record=record,
        whole=_describe(values, found) if rank == 0 else None,
    )


def _describe(values: dict[str, Any], found: Encoded) -> Whole:
    flat, paths = flatten_state_dict(values)
    names = set(found.names)
    objects = {
        name: copy.deepcopy(value)
        for name, value in flat.items()
        if name not in names and not isinstance(value, torch.Tensor)
    }
    return Whole(
        tree=found.tree,
        tensors=[
            (name, tensor.dtype, tuple(tensor.shape))
            for name, tensor in zip(found.names, found.tensors, strict=True)
        ],
        objects=objects,
        paths={name: paths.get(name, (name,)) for name in [*found.names, *objects]},
    )


def rank_name(rank: int) -> str:
    """Return under which name a checkpoint holds the state of one rank."""
    return f"keepstep.rank.{rank}"


def write_share(share: Share) -> None:
    """Write the share of one rank and say in its part file what was written."""
    record = torch.frombuffer(bytearray(share.record), dtype=torch.uint8)
    contents: dict[str, Any] = {**share.tensors, rank_name(share.rank): record}
    if share.whole is not None:
        contents.update(share.whole.objects)
    planner = _planner(contents)
    target = _Writer(share.folder)
    # In this mode of the writer the rank gives its files their names.
    target.set_up_storage_writer(True, rank=share.rank, use_collectives=False)
    plan = target.prepare_local_plan(planner.create_local_plan())
    results: list[WriteResult] = target.write_data(plan, planner).value()
    say(
        share.folder,
        share.rank,
        {
            "rows": [_row(result) for result in results],
            "sha256": {name: _sha256(tensor) for name, tensor in share.tensors.items()},
            "record": {"bytes": len(share.record), "sha256": _sha256(record)},
        },
    )


def say(folder: Path, rank: int, part: dict[str, Any]) -> None:
    """Tell rank 0 what this rank has written, or (``failed``) why it has not."""
    write_whole(part_path(folder, rank), [json.dumps(part)])


def part_path(folder: Path, rank: int) -> Path:
    """Return the part file of a rank."""
    return folder / f"part-{rank}.json"


def complete(share: Share, final: Path, readable_by: str | None, *, old_form: bool) -> None:
    """Make the parts of all ranks one checkpoint, all but its final name. Rank 0 does this.

    Raises:
        GivenUpError: a rank has written nothing.
    """
    whole = share.whole
    assert whole is not None
    paths = [part_path(share.folder, rank) for rank in range(share.world_size)]
    parts = [json.loads(path.read_text()) for path in paths]
    for rank, part in enumerate(parts):
        if "failed" in part:
            raise GivenUpError(f"rank {rank}: {part['failed']}")
    digests = {name: digest for part in parts for name, digest in part["sha256"].items()}
    manifest = {
        "tree": whole.tree,
        "tensors": [
            {
                "dtype": str(dtype).removeprefix("torch."),
                "shape": list(shape),
                "sha256": digests[name],
            }
            for name, dtype, shape in whole.tensors
        ],
    }
    body = {
        "format": FORMAT,
        "step": share.step,
        "world_size": share.world_size,
        "state_sha256": digest_of(dump_manifest(manifest)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "readable_by": readable_by,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "ranks": [part["record"] for part in parts],
        "names": [name for name, _, _ in whole.tensors],
        "state": manifest,
    }
    write_whole(share.folder / RECORD, [json.dumps(body)])
    for path in paths:
        path.unlink()
    target = _Writer(share.folder, final)
    target.set_up_storage_writer(True)
    metadata = _metadata(whole, [part["record"]["bytes"] for part in parts])
    results = [[_result(row) for row in part["rows"]] for part in parts]
    (writer(target) if old_form else target).finish(metadata, results)


def _metadata(whole: Whole, record_sizes: list[int]) -> Metadata:
    """Return what PyTorch's planner says of tensors of these shapes."""
    contents: dict[str, Any] = {
        name: torch.empty(shape, dtype=dtype, device="meta") for name, dtype, shape in whole.tensors
    }
    for rank, size in enumerate(record_sizes):
        contents[rank_name(rank)] = torch.empty(size, dtype=torch.uint8, device="meta")
    planner = _planner({**contents, **whole.objects})
    metadata: Metadata = planner.create_global_plan([planner.create_local_plan()])[1]
    records = {rank_name(rank): (rank_name(rank),) for rank in range(len(record_sizes))}
    metadata.planner_data = {**whole.paths, **records}
    return metadata


def _planner(contents: dict[str, Any]) -> DefaultSavePlanner:
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(contents, is_coordinator=True)
    return planner


class _Writer(FileSystemWriter):
    """PyTorch's writer, which notes under which name the checkpoint will be found."""

    def __init__(self, folder: Path, final: Path | None = None) -> None:
        super().__init__(folder)
        self._final = final or folder

    def storage_meta(self) -> StorageMeta:
        # As text: a path that Python 3.13 pickles cannot be read by any other Python.
        return StorageMeta(checkpoint_id=str(self._final), save_id=self.save_id)


def _row(result: WriteResult) -> list[Any]:
    place, stored = result.index, result.storage_data
    offset = None if place.offset is None else list(place.offset)
    return [
        *(place.fqn, offset, place.index, result.size_in_bytes),
        *(stored.relative_path, stored.offset, stored.length),
    ]


def _result(row: list[Any]) -> WriteResult:
    name, offset, index, size, path, start, length = row
    place = MetadataIndex(name, None if offset is None else torch.Size(offset), index)
    return WriteResult(place, size, _StorageInfo(path, start, length))


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(buffer_of(tensor)).hexdigest()
