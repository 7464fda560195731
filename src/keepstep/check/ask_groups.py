"""Counts the groups of a layout on torch's fake process group: one process, any world size."""

from __future__ import annotations

import collections
import json
import logging
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

logging.disable(logging.WARNING)

_request = json.loads(sys.argv[1])
_world = _request["world"]
_made: list[tuple[str, list[int]]] = []
_helper: Any = distributed_c10d._new_process_group_helper


def _counting(size: int, rank: int, ranks: list[int], *arguments: Any, **options: Any) -> Any:
    _made.append((options.get("group_desc") or "", list(ranks)))
    return _helper(size, rank, ranks, *arguments, **options)


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=_world)
vars(distributed_c10d)["_new_process_group_helper"] = _counting
for _layout in _request["meshes"]:
    _names = tuple(_layout["names"])
    _mesh = init_device_mesh("cpu", tuple(_layout["sizes"]), mesh_dim_names=_names)
    for _flat in _layout["flat"]:
        _mesh[tuple(_flat)]._flatten("_".join(_flat))

_members = collections.Counter(rank for _, ranks in _made for rank in ranks)
_counts = [_members.get(rank, 0) for rank in range(_world)]
print(
    "keepstep-answer "
    + json.dumps(
        {
            "torch": torch.__version__,
            "groups": len(_made),
            "least": min(_counts),
            "most": max(_counts),
            "of_rank_0": [
                [what.removeprefix("mesh_"), len(ranks)] for what, ranks in _made if 0 in ranks
            ],
        }
    )
)
