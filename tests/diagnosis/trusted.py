"""Load the recorded dumps of this project, which are known to be harmless, into the model.

It does what ``keepstep.recorder`` does for files that nobody knows, in a few lines and without its
care, so that a fault of the reader and a fault of the diagnosis can be told apart.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

from keepstep.recorder.model import (
    Backend,
    Direction,
    Dump,
    Entry,
    Frame,
    Group,
    GroupName,
    Operation,
    RankDump,
    State,
    Status,
)

TRANSFER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+|\?)$")
BACKENDS = {
    "nccl": Backend.NCCL_LEGACY,
    "nccl2": Backend.NCCL2,
    "nccl-lazy": Backend.NCCL_LAZY,
    "gloo": Backend.GLOO,
}


def load_folder(folder: Path) -> tuple[RankDump, ...]:
    """Load every pickled dump below a folder; a rank may have one of each recorder."""
    found = []
    for path in sorted(folder.rglob("*")):
        match = re.fullmatch(r"(?:comm_lib_trace_rank_|_dump_)(\d+)", path.name)
        if match is not None:
            raw = pickle.loads(path.read_bytes())
            found.append(RankDump(dump=read(raw), path=path, rank=int(match[1])))
    return tuple(found)


def read(raw: dict[str, Any]) -> Dump:
    """Turn one raw dump into the model."""
    names: dict[tuple[str, str], GroupName] = {}
    prefixes = {str(item["profiling_name"]).split(":")[0] for item in raw["entries"]}
    backend = BACKENDS[prefixes.pop()] if prefixes else Backend.UNKNOWN
    entries = []
    for item in raw["entries"]:
        name, description = item["process_group"]
        entries.append(
            Entry(
                record=item["record_id"],
                pg_id=item["pg_id"],
                group=names.setdefault((name, description), GroupName(name, description)),
                operation=_operation(item),
                is_p2p=item["is_p2p"],
                sequence=item["p2p_seq_id" if item["is_p2p"] else "collective_seq_id"],
                op_id=item["op_id"],
                state=State(item["state"]),
                retired=item["retired"],
                created_ns=item["time_created_ns"],
                timeout_ms=item["timeout_ms"],
                stack=tuple(
                    Frame(frame["name"], frame["filename"], frame["line"])
                    for frame in item.get("frames", [])
                ),
            )
        )
    gloo = backend is Backend.GLOO
    groups = tuple(
        Group(
            GroupName(name, group["desc"]),
            None if gloo else tuple(json.loads(group["ranks"])),
        )
        for name, group in raw["pg_config"].items()
    )
    counters = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    status = {
        int(number): Status(*(None if group[c] < 0 else group[c] for c in counters))
        for number, group in raw["pg_status"].items()
    }
    return Dump(
        version=raw["version"],
        backend=backend,
        groups=groups,
        status=status,
        entries=tuple(entries),
    )


def _operation(item: dict[str, Any]) -> Operation:
    name = str(item["profiling_name"]).split(":", 1)[-1]
    match = TRANSFER.match(name)
    sizes = {
        side: tuple(
            tuple(size) if all(isinstance(extent, int) for extent in size) else ()
            for size in item[f"{side}_sizes"]
        )
        for side in ("input", "output")
    }
    return Operation(
        match[1] if match else name,
        sizes["input"],
        tuple(item["input_dtypes"]),
        sizes["output"],
        tuple(item["output_dtypes"]),
        Direction(match[1]) if match else None,
        int(match[2]) if match else None,
        int(match[3]) if match and match[3] != "?" else None,
    )
