"""Dumps of a large job: full ring buffers, stacks of five frames, one rank that did not come.

Ranks make the same calls in groups of other names and members. So one file is written as PyTorch's
pickler does, and copied for each rank with its own groups in place of stand-ins: each text stands
in a file once, all other places refer to it.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

from tests.recorder.writing import as_pickle, row

TENSOR = 8  # ranks of a tensor group
FIRST_RECORD = 50_000
KINDS = (("all_reduce", 1), ("_all_gather_base", 2), ("all_reduce", 0))  # with the group's number
NAMES = ("0", "tensor group", "data group")  # the last two stand for each rank's own
DESCRIPTIONS = ("default_pg", "tp", "dp")
MEMBERS = ("all ranks", "tensor ranks", "data ranks")
SITES = 40  # different call sites
FRAMES = 5


def write_large(folder: Path, ranks: int, entries: int) -> int:
    """Write the dumps of ``ranks`` ranks; return the rank that did not enter the last all-reduce.

    Calls of the three groups take turns; the last one is of all ranks.
    """
    stalled = ranks // 3
    full = _template(ranks, entries, entries)
    short = _template(ranks, entries, entries - 1)
    for rank in range(ranks):
        content = short if rank == stalled else full
        for stand_in, text in _texts(rank, ranks).items():
            content = content.replace(_literal(stand_in), _literal(text))
        (folder / f"_dump_{rank}").write_bytes(content)
    return stalled


def _template(ranks: int, entries: int, written: int) -> bytes:
    size = {0: ranks, 1: min(TENSOR, ranks), 2: max(1, ranks // TENSOR)}
    found = {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": members}
            for name, description, members in zip(NAMES, DESCRIPTIONS, MEMBERS, strict=True)
        },
        "comm_lib_version": "2.30.7",
        "pg_status": {str(group): _status(group, entries, written) for group in range(3)},
        "entries": [_row(number, entries, size) for number in range(written)],
    }
    return as_pickle(found)


def _status(group: int, entries: int, written: int) -> dict[str, int]:
    last = (FIRST_RECORD + entries) // 3
    behind = group == 0
    return {
        "last_enqueued_collective": last - (behind and written < entries),
        "last_started_collective": -1,
        "last_completed_collective": last - behind,
    }


def _row(number: int, entries: int, size: dict[int, int]) -> dict[str, Any]:
    kind, group = KINDS[(number - entries) % 3]
    elements = 128 * (1 + number // 3 % 30)
    out = elements * (size[group] if kind == "_all_gather_base" else 1)
    done = number < entries - 1
    site = number % SITES
    sequence = (FIRST_RECORD + entries) // 3 - (entries - 1 - number) // 3
    changes: dict[str, Any] = {} if done else {"time_discovered_completed_ns": None}
    return row(
        FIRST_RECORD + number,
        pg_id=group,
        process_group=(NAMES[group], DESCRIPTIONS[group]),
        collective_seq_id=sequence,
        op_id=sequence,
        profiling_name=f"nccl:{kind}",
        input_sizes=[[elements]],
        output_sizes=[[out]],
        state="completed" if done else "scheduled",
        time_discovered_started_ns=None,
        retired=done,
        frames=[
            {"name": f"f{depth}", "filename": f"/srv/train/module{depth}.py", "line": site + depth}
            for depth in range(FRAMES)
        ],
        **changes,
    )


def _texts(rank: int, ranks: int) -> dict[str, str]:
    """Return what stands in a rank's file for the stand-ins."""
    first = rank - rank % TENSOR
    lane = rank % TENSOR
    tensor = list(range(first, min(first + TENSOR, ranks)))
    data = list(range(lane, ranks, TENSOR))
    return {
        "tensor group": str(1 + rank // TENSOR),
        "data group": str(1 + ranks + lane),
        "all ranks": str(list(range(ranks))),
        "tensor ranks": str(tensor),
        "data ranks": str(data),
    }


def _literal(text: str) -> bytes:
    raw = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw
