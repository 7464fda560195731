"""One rank of the rollback drill: what does a backend's name mean here, and to the other ranks?

Started once a rank with torchrun's variables. It resolves the name, exchanges the answer with the
other ranks through the store, before any group or collective exists, and goes on only where all
agree: then it builds the group, if the machine can. Its answer is ``resolved-RANK.json`` of the
folder. Exit code 0: agreed; 1: the ranks differ; 2: something else went wrong.

Standard library and torch only, Python 3.10 and PyTorch 2.11 or newer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "TORCH_DIST_USE_NCCL2"
SAME = ("spelling", "builder", "type", "torch", "git")  # what all ranks must agree in


def main() -> int:
    """Answer for one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds until it ends itself")
    options = parser.parse_args()
    threading.Thread(target=_end_by_limit, args=(options.limit,), daemon=True).start()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    answer: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "variable": _value()}
    code = _answer(answer, options, rank, world_size)
    path = Path(options.folder) / f"resolved-{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(answer, indent=1))
    os.replace(path.with_suffix(".part"), path)
    return code


def _end_by_limit(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(2)


def _value() -> str | None:
    return os.environ.get(VARIABLE)


def _answer(answer: dict[str, Any], options: argparse.Namespace, rank: int, world_size: int) -> int:
    import torch
    import torch.distributed as dist

    answer |= {"torch": torch.__version__, "git": torch.version.git_version}
    answer |= {"spelling": options.backend, **resolve(options.backend)}
    answer["read_once"] = _read_once(options.backend, answer["builder"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        rank == 0,
        timeout=datetime.timedelta(seconds=options.limit),
    )
    others = _exchange(store, answer, rank, world_size)
    answer["differs"] = differing(others)
    answer["collectives_before"] = 0  # no group exists: nothing can have been started
    if answer["differs"]:
        print(f"rank {rank}: refused: {'; '.join(answer['differs'])}", file=sys.stderr)
        _leave_together(store, rank, world_size)
        return 1
    answer |= _build(options.backend, store, rank, world_size)
    _leave_together(store, rank, world_size)
    return 0


def resolve(spelling: str) -> dict[str, Any]:
    """Return what builds the groups of a backend spelling, and of which type it is."""
    from torch.distributed.distributed_c10d import Backend

    ensure = getattr(Backend, "_ensure_backend_registered", None)
    if ensure is not None:
        ensure(spelling)
    plugin = getattr(Backend, "_plugins", {}).get(spelling.upper())
    kind = Backend.backend_type_map.get(spelling)
    if plugin is None:
        why = "this version builds it without a registered function"
        known = spelling in Backend.backend_list
        return {"builder": None, "type": _text(kind), "why": why if known else "unknown backend"}
    return {"builder": plugin.creator_fn.__name__, "type": _text(kind), "why": ""}


def _text(kind: object) -> str | None:
    return None if kind is None else str(kind).rpartition(".")[2]


def _read_once(spelling: str, before: object) -> bool | None:
    """Return whether the name means the same after the variable has changed in this process."""
    if before is None:
        return None
    kept = _value()
    os.environ[VARIABLE] = "0" if kept != "0" else "1"
    try:
        return bool(resolve(spelling)["builder"] == before)
    finally:
        os.environ.pop(VARIABLE)
        if kept is not None:
            os.environ[VARIABLE] = kept


def _exchange(store: Any, answer: dict[str, Any], rank: int, world_size: int) -> list[Any]:
    """Return what every rank resolved, by rank; through the store alone."""
    store.set(f"resolved-{rank}", json.dumps({name: answer[name] for name in SAME}))
    store.wait([f"resolved-{other}" for other in range(world_size)])
    return [json.loads(store.get(f"resolved-{other}")) for other in range(world_size)]


def differing(answers: list[Any]) -> list[str]:
    """Return in what ranks differ, in words; empty where all agree."""
    found = []
    for name in SAME:
        values = [answer[name] for answer in answers]
        if any(value != values[0] for value in values):
            by_rank = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            found.append(f"{name} differs: {by_rank}")
    return found


def _build(spelling: str, store: Any, rank: int, world_size: int) -> dict[str, Any]:
    """Build the group and use it, where the machine can; else say what refused, and how."""
    import torch
    import torch.distributed as dist

    on_gpu = spelling != "gloo"
    if on_gpu and torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    try:
        dist.init_process_group(
            spelling, store=dist.PrefixStore("drill", store), rank=rank, world_size=world_size
        )
        device = torch.device("cuda" if on_gpu else "cpu")
        group = dist.distributed_c10d._get_default_group()._get_backend(device)
        tensor = torch.ones(1024, device=device)
        dist.all_reduce(tensor)
        return {"built": type(group).__name__, "sum": float(tensor[0]), "refusal": ""}
    except Exception as error:  # whatever refuses, its words are the evidence
        return {"built": None, "refusal": f"{type(error).__name__}: {error}"[:500]}


def _leave_together(store: Any, rank: int, world_size: int) -> None:
    """Keep rank 0, which serves the store, until all others are done with it."""
    store.set(f"left-{rank}", "")
    if rank == 0:
        store.wait([f"left-{other}" for other in range(world_size)])


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a group that was built for this look is not worth taking apart
