"""Writes dumps as the recorders of all PyTorch versions do, from one description of what to say.

``facts`` are the rows of the newest format; ``as_version`` turns them into an older one.
"""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

Row = dict[str, Any]

VERSIONS = ("0", "1.0", "1.2", "2.0", "2.3", "2.4", "2.6", "2.9", "2.10")
T0 = 1_795_961_395_000_000_000

STACK = [
    ("all_reduce", "/opt/site/torch/distributed/distributed_c10d.py", 4174),
    ("wrapper", "/opt/site/torch/distributed/c10d_logger.py", 83),
    ("reduce_gradients", "/srv/train/parallel.py", 310),
    ("backward", "/srv/train/parallel.py", 122),
    ("step", "/srv/train/trainer.py", 88),
    ("fit", "/srv/train/trainer.py", 41),
    ("main", "/srv/train/train.py", 20),
]


def row(record: int = 0, **changes: Any) -> Row:
    """Return one entry as nccl2 writes it."""
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record,
        "profiling_name": "nccl2:all_reduce",
        "time_created_ns": T0 + record * 1_000_000,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": T0 + record * 1_000_000 + 700,
        "time_discovered_completed_ns": T0 + record * 1_000_000 + 900,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "thread_id": "140009006104896",
        "thread_name": "python3",
        "frames": [{"name": n, "filename": f, "line": line} for n, f, line in STACK],
        **changes,
    }


def dump(rows: list[Row], **changes: Any) -> dict[str, Any]:
    """Return a whole dump of the newest format."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "comm_lib_version": "",
        "pg_status": {
            "0": {
                "last_enqueued_collective": len(rows),
                "last_started_collective": -1,
                "last_completed_collective": len(rows),
            }
        },
        "entries": rows,
        **changes,
    }


def as_version(newest: dict[str, Any], version: str) -> Any:
    """Return the same dump as an older PyTorch would have written it."""
    if version == "0":
        return [_old_row(entry) for entry in newest["entries"]]
    major, minor = map(int, version.split("."))
    found = {**newest, "version": version}
    library = found.pop("comm_lib_version")
    if (major, minor) >= (2, 10):
        found["comm_lib_version"] = library
    elif (major, minor) >= (2, 6):
        found["nccl_version"] = library
    if major == 1:
        found["entries"] = [_old_row(entry) for entry in newest["entries"]]
        if minor == 0:
            del found["pg_config"], found["pg_status"]
    elif minor < 9:
        found["entries"] = [
            {key: value for key, value in entry.items() if not key.startswith("thread")}
            for entry in newest["entries"]
        ]
    return found


def _old_row(entry: Row) -> Row:
    kept = (
        *("pg_id", "profiling_name", "time_created_ns", "input_sizes", "output_sizes", "state"),
        *("time_discovered_started_ns", "time_discovered_completed_ns", "frames", "retired"),
    )
    old = {key: entry[key] for key in kept if key in entry}
    old["seq_id"] = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
    return old


def as_json(found: dict[str, Any]) -> bytes:
    """Return a dump as the JSON interface of PyTorch writes it."""
    top = dict(found)
    top["pg_status"] = {
        key: {name: str(count) for name, count in counts.items()}
        for key, counts in found.get("pg_status", {}).items()
    }
    top.setdefault("nccl_comm_state", {})
    top["entries"] = [_json_row(entry) for entry in found["entries"]]
    if not top["entries"]:
        del top["entries"]
    return json.dumps(top).encode()


def _json_row(entry: Row) -> Row:
    changed = {key: value for key, value in entry.items() if key != "frames"}
    for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
        if key in changed:
            changed[key] = changed[key] or 0
    return changed


def as_pickle(found: Any) -> bytes:
    """Return a pickle as PyTorch's own pickler writes it: each text and each frame stands once."""
    out = bytearray(pickle.PROTO + b"\x02")
    _write(found, out, {})
    return bytes(out + pickle.STOP)


Memo = dict[object, int]  # texts, and the items of frames


def _write(value: Any, out: bytearray, memo: Memo) -> None:
    if value is None:
        out += pickle.NONE
    elif isinstance(value, bool):
        out += pickle.NEWTRUE if value else pickle.NEWFALSE
    elif isinstance(value, str):
        _write_text(value, out, memo)
    elif isinstance(value, float):
        out += pickle.BINFLOAT + struct.pack(">d", value)
    elif isinstance(value, int):
        out += _number(value)
    elif isinstance(value, dict):
        _write_dictionary(value, out, memo)
    elif isinstance(value, list):
        out += pickle.EMPTY_LIST + pickle.MARK
        for part in value:
            _write(part, out, memo)
        out += pickle.APPENDS
    else:
        assert isinstance(value, tuple)
        assert len(value) == 2
        _write(value[0], out, memo)
        _write(value[1], out, memo)
        out += pickle.TUPLE2


def _write_dictionary(value: dict[Any, Any], out: bytearray, memo: Memo) -> None:
    frame = tuple(value.items()) if value.keys() == {"name", "filename", "line"} else None
    if frame in memo:
        out += _reference(memo[frame], pickle.BINGET, pickle.LONG_BINGET)
        return
    out += pickle.EMPTY_DICT
    if frame is not None:
        memo[frame] = len(memo)
        out += _reference(memo[frame], pickle.BINPUT, pickle.LONG_BINPUT)
    out += pickle.MARK
    for part in (part for item in value.items() for part in item):
        _write(part, out, memo)
    out += pickle.SETITEMS


def _write_text(value: str, out: bytearray, memo: Memo) -> None:
    if value in memo:
        out += _reference(memo[value], pickle.BINGET, pickle.LONG_BINGET)
        return
    raw = value.encode("utf-8", "surrogatepass")
    memo[value] = len(memo)
    out += pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw
    out += _reference(memo[value], pickle.BINPUT, pickle.LONG_BINPUT)


def _reference(index: int, short: bytes, long: bytes) -> bytes:
    return short + bytes([index]) if index < 256 else long + struct.pack("<I", index)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return pickle.BININT1 + bytes([value])
    if 0 <= value < 1 << 16:
        return pickle.BININT2 + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    raw = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(raw)]) + raw


def write_job(folder: Path, ranks: int, entries: int) -> None:
    """Write the dumps of a large training job: four groups, a handful of operations, stacks."""
    kinds = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all_single")
    groups = [("0", "default_pg"), ("1", "tp"), ("2", "dp"), ("3", "ep")]
    world = str(list(range(ranks)))
    for rank in range(ranks):
        rows = []
        for number in range(entries):
            group = number % 4
            kind = kinds[number % len(kinds)]
            depth = 5 + number % 6
            stack = [*STACK, *STACK][:depth]
            stack[2] = (*stack[2][:2], number % 40)
            rows.append(
                row(
                    number + 50_000,
                    pg_id=group,
                    process_group=groups[group],
                    collective_seq_id=number // 4 + 12_000,
                    op_id=number // 4 + 12_000,
                    profiling_name=f"nccl2:{kind}",
                    input_sizes=[[4096, 1, 128 * (number % 30)]],
                    output_sizes=[[4096, 1, 128 * (number % 30)]],
                    time_created_ns=T0 + rank * 1000 + number * 1_000_000,
                    frames=[{"name": n, "filename": f, "line": at} for n, f, at in stack],
                )
            )
        configuration = {
            name: {"name": name, "desc": description, "ranks": world}
            for name, description in groups
        }
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(
            as_pickle(dump(rows, pg_config=configuration))
        )
