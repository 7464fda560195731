"""Saves checkpoints with the installed PyTorch, in every way that there is; prints facts as JSON.

A script, because the tests themselves run without torch: ``python saves.py FOLDER``.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from keepstep.checkpoint import write_old_format, writer

MEGABYTES = 40  # of each tensor of the checkpoint called large


class OwnWriter(dcp.FileSystemWriter):
    """A trainer's writer with a ``finish`` of its own, in which another thread pickles too."""

    other = b""

    def finish(self, metadata: Any, results: Any) -> None:
        thread = threading.Thread(target=self._pickle)
        thread.start()
        thread.join()
        super().finish(metadata, results)
        (Path(self.path) / "finished").touch()

    def _pickle(self) -> None:
        self.other = pickle.dumps(properties())


def properties() -> TensorProperties:
    return TensorProperties.create_from_tensor(torch.ones(2, 3).t())


def fields(pickled: bytes) -> int:
    """Return how many fields were pickled."""
    seen: list[int] = []
    kind: Any = TensorProperties
    own = kind.__setstate__

    def watch(self: Any, state: Any) -> None:
        seen.append(len(state))
        own(self, state)

    kind.__setstate__ = watch
    pickle.loads(pickled)
    kind.__setstate__ = own
    return seen[0]


def state() -> dict[str, Any]:
    return {
        "w": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "turned": torch.ones(2, 3).t(),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 4),
        "model": {"w": torch.ones(2, 3), "b": torch.ones(3), "h": torch.ones(2)},
        "step": 7,
        "words": ["a", "b"],
    }


def main(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    dcp.save(state(), checkpoint_id=folder / "new", no_dist=True)
    metadata = dcp.save(state(), storage_writer=writer(folder / "old"), no_dist=True)
    facts["strides_in_memory"] = metadata.state_dict_metadata["turned"].properties.strides
    facts["storage_meta"] = metadata.storage_meta is not None

    own = OwnWriter(str(folder / "own"))
    facts["same_object"] = writer(own) is own
    dcp.save(state(), storage_writer=own, no_dist=True)
    facts["other_thread_meanwhile"] = fields(own.other)
    dcp.save(state(), storage_writer=own, checkpoint_id=folder / "own-again", no_dist=True)

    dcp.save(state(), storage_writer=writer(f"file://{folder}/remote"), no_dist=True)
    options = writer(folder / "two-files", single_file_per_rank=False)
    dcp.save(state(), storage_writer=options, no_dist=True)
    dcp.save(state(), checkpoint_id=folder / "new-after", no_dist=True)
    facts["refuses_options"] = refuses(own)

    write_old_format()
    facts["everywhere"] = fields(pickle.dumps(properties()))
    facts["torch_protocol"] = fields(pickle.dumps(properties(), protocol=2))
    sharded = pickle.dumps(ShardedTensorMetadata())
    dcp.save(state(), checkpoint_id=folder / "everywhere", no_dist=True)
    write_old_format(False)
    facts["sharded_shorter"] = len(sharded) < len(pickle.dumps(ShardedTensorMetadata()))
    facts["nowhere"] = fields(pickle.dumps(properties()))

    local = {"use_collectives": False, "no_dist": True}
    dcp.save(state(), storage_writer=writer(folder / "rank-local"), **local)
    large = {f"w{i}": torch.full((MEGABYTES << 18,), float(i)) for i in range(6)}
    dcp.save(
        {**state(), **large, "gone": torch.ones(1)}, checkpoint_id=folder / "large", no_dist=True
    )

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    facts["loaded"] = loads(folder / "old")
    for name in ("thread", "process"):
        kind = AsyncCheckpointerType(name)
        target = writer(folder / f"async-{name}")
        saving: Any = dcp.async_save(state(), storage_writer=target, async_checkpointer_type=kind)
        saving.result()
    dist.destroy_process_group()
    return facts


def refuses(own: OwnWriter) -> str:
    try:
        writer(own, thread_count=2)
    except TypeError as error:
        return str(error)
    return ""


def loads(folder: Path) -> bool:
    """Return whether this version loads it as it was."""
    found = {name: torch.zeros_like(v) if torch.is_tensor(v) else v for name, v in state().items()}
    dcp.load(found, checkpoint_id=folder)
    return all(
        torch.equal(found[name], value) for name, value in state().items() if torch.is_tensor(value)
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(Path(sys.argv[1]))))
