"""The simulator's dumps as PyTorch 2.15 would write them: format 2.10, as pickles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keepstep.recorder.model import Backend, Direction, Dump, Entry, Operation, RankDump, State
from tests.recorder.writing import as_pickle

PREFIX = {Backend.NCCL_LEGACY: "nccl", Backend.NCCL2: "nccl2", Backend.GLOO: "gloo"}


def write(folder: Path, dumps: Iterable[RankDump], world_size: int) -> None:
    """Write each dump as ``_dump_RANK``, a name that all tools take."""
    for each in dumps:
        (folder / f"_dump_{each.rank}").write_bytes(as_pickle(as_written(each.dump, world_size)))


def as_written(dump: Dump, world_size: int) -> dict[str, Any]:
    """Return a dump's content in format 2.10."""
    sizes = {group.name.name: len(group.ranks or ()) for group in dump.groups}
    return {
        "version": "2.10",
        "pg_config": {
            group.name.name: {
                "name": group.name.name,
                "desc": group.name.description,
                # gloo lists one group without a name, with ranks counted within the group.
                "ranks": str(list(range(world_size) if group.ranks is None else group.ranks)),
            }
            for group in dump.groups
        },
        "comm_lib_version": "2.30.7" if dump.backend is Backend.NCCL_LEGACY else "",
        "pg_status": {
            str(number): {
                "last_enqueued_collective": _count(status.enqueued),
                "last_started_collective": _count(status.started),
                "last_completed_collective": _count(status.completed),
            }
            for number, status in dump.status.items()
        },
        "entries": list(_rows(dump, sizes)),
    }


def _count(number: int | None) -> int:
    return -1 if number is None else number


def _rows(dump: Dump, sizes: dict[str, int]) -> Iterable[dict[str, Any]]:
    """Yield the entries; each carries the last number of the other kind in its group as well."""
    newest: Counter[tuple[str, bool]] = Counter()
    for entry in dump.entries:
        group = entry.group.name
        newest[group, entry.is_p2p] = entry.sequence
        yield _row(entry, PREFIX[dump.backend], newest, sizes.get(group, 0))


def _row(
    entry: Entry, prefix: str, newest: Counter[tuple[str, bool]], members: int
) -> dict[str, Any]:
    operation = entry.operation
    created = entry.created_ns or 0
    completed = entry.state is State.COMPLETED
    return {
        "record_id": entry.record,
        "pg_id": entry.pg_id,
        "process_group": (entry.group.name, entry.group.description),
        "thread_name": "python3",
        "thread_id": "139692212019520",
        "collective_seq_id": newest[entry.group.name, False],
        "p2p_seq_id": newest[entry.group.name, True],
        "op_id": entry.op_id,
        "profiling_name": f"{prefix}:{_name(operation)}",
        "time_created_ns": created,
        "input_sizes": [list(size) for size in operation.input_sizes],
        "input_dtypes": list(operation.input_dtypes),
        "output_sizes": output_sizes(operation, members),
        "output_dtypes": list(operation.output_dtypes),
        "state": entry.state.value,
        "time_discovered_started_ns": created + 500 if entry.state is State.STARTED else None,
        "time_discovered_completed_ns": created + 900 if completed else None,
        "retired": entry.retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": entry.is_p2p,
        "frames": [{"name": f.function, "filename": f.file, "line": f.line} for f in entry.stack],
    }


def _name(operation: Operation) -> str:
    if operation.direction is None:
        return operation.name
    peer = "?" if operation.peer is None else operation.peer
    arrow = "->" if operation.direction is Direction.SEND else "<-"
    return f"{operation.name} {operation.own}{arrow}{peer}"


def output_sizes(operation: Operation, members: int) -> list[list[int]]:
    """Return the sizes of what comes out; the simulator gives the sizes of what goes in for both.

    Where a gather's outputs did not hold its inputs, torchfrtrace would rightly call it an error.
    """
    inputs = [list(size) for size in operation.input_sizes]
    if operation.name == "_all_gather_base":
        return [[math.prod(size) * members] for size in inputs]
    if operation.name == "all_gather":
        return [size for size in inputs for _ in range(members)]
    if operation.name == "_reduce_scatter_base":
        return [[math.prod(size) // members] for size in inputs]
    return [list(size) for size in operation.output_sizes]
