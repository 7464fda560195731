"""One rank of the hang drill: it enters an all-reduce, or is held just before it.

Started once a rank with torchrun's variables. It tells what it does in ``progress-RANK.jsonl`` of
the folder, a line a fact: the drill believes these lines and what it sees of the process, nothing
else. Standard library and torch only, Python 3.10 and PyTorch 2.11 or newer.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import hashlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

WARM_UP = 3  # collectives of every rank before the one that hangs: history for a recorder
LOOK_S = 0.05  # between two looks for a file of the drill
_LEAVE_S = 5.0  # for the main thread to end by itself
_RECORDERS = {  # class of a process group to the names under which it may record
    "ProcessGroupGloo": ("gloo",),
    "ProcessGroupNCCL2": ("nccl2",),
    "ProcessGroupNCCLLazy": ("nccl-lazy", "nccl2"),
    "ProcessGroupNCCL": ("nccl", "nccl-legacy"),
}


class Progress:
    """The facts of this rank, on disk as soon as they are said."""

    def __init__(self, folder: Path, rank: int) -> None:
        # Open as long as the rank lives: no block of code could hold it.
        self._file = open(folder / f"progress-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
        self._lock = threading.Lock()
        self._rank = rank

    def say(self, fact: str, **more: Any) -> None:
        """Write one line; monotonic time is the same clock for all ranks of a host."""
        line = {"fact": fact, "rank": self._rank, "at": time.monotonic(), **more}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")


def main() -> None:
    """Run one rank to its end."""
    options = _options()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(options.folder)
    progress = Progress(folder, rank)
    progress.say("started", pid=os.getpid(), python=sys.executable, host=socket.gethostname())
    threading.Thread(target=_end_by_limit, args=(options.limit,), daemon=True).start()
    threading.Thread(target=_end_when_let_go, args=(folder,), daemon=True).start()
    group = _join(options, rank, world_size, progress)
    _answer_in_background(folder, rank, group, progress)
    tensor = _tensor(options.backend)
    for _ in range(WARM_UP):
        _all_reduce(tensor)
    progress.say("warm", collectives=WARM_UP)
    if rank == options.held:
        _hold(folder, rank, progress)
    else:
        _enter(tensor, folder, progress)
    progress.say("left")
    os._exit(0)  # a group with a broken collective is not taken apart: that may hang again


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--held", type=int, required=True, help="the rank to hold")
    parser.add_argument("--timeout", type=float, required=True, help="of an operation, seconds")
    parser.add_argument("--limit", type=float, required=True, help="seconds until it ends itself")
    return parser.parse_args()


def _end_by_limit(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(3)


def _end_when_let_go(folder: Path) -> None:
    """End a rank whose main thread does not come back from its collective."""
    while not (folder / "release").exists():
        time.sleep(LOOK_S)
    time.sleep(_LEAVE_S)
    os._exit(0)


def _join(options: argparse.Namespace, rank: int, world_size: int, progress: Progress) -> Any:
    """Import torch, wait for the others, and build the group; return its implementation."""
    import torch
    import torch.distributed as dist

    progress.say("imported", torch=torch.__version__, git=torch.version.git_version)
    # A store of its own with a long timeout: the short one is for the collective, and a machine
    # that imports torch slowly must not run into it.
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        rank == 0,
        timeout=datetime.timedelta(seconds=options.limit),
    )
    arguments: dict[str, Any] = {}
    if options.backend != "gloo":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        arguments["device_id"] = device
        torch.ones(1, device=device)  # makes the context, which takes seconds, before anybody waits
    store.set(f"there-{rank}", "")
    store.wait([f"there-{other}" for other in range(world_size)])
    dist.init_process_group(
        options.backend,
        store=dist.PrefixStore("drill", store),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=options.timeout),
        **arguments,
    )
    default = dist.distributed_c10d._get_default_group()
    device = torch.device("cpu" if options.backend == "gloo" else "cuda")
    group = default._get_backend(device)
    progress.say("grouped", asked=options.backend, built=type(group).__name__, device=device.type)
    return group


def _tensor(backend: str) -> Any:
    import torch

    return torch.ones(1024, device="cpu" if backend == "gloo" else "cuda")


def _all_reduce(tensor: Any) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _hold(folder: Path, rank: int, progress: Progress) -> None:
    """Stay before the collective until the drill lets go; every look is a line of proof."""
    with open(folder / f"stack-{rank}.txt", "w") as file:
        here = sys._getframe().f_lineno + 1
        faulthandler.dump_traceback(file, all_threads=False)
    progress.say("held", pid=os.getpid(), line=here, stack=f"stack-{rank}.txt")
    while not (folder / "release").exists():
        time.sleep(LOOK_S)
        progress.say("still held")
    progress.say("let go")


def _enter(tensor: Any, folder: Path, progress: Progress) -> None:
    """Enter the collective that cannot complete, and say how it ends."""
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(tensor, async_op=True)
    began = time.monotonic()
    progress.say("entered", collective=WARM_UP + 1)
    try:
        work.wait()
        if tensor.is_cuda:
            torch.cuda.synchronize()
    except RuntimeError as error:
        text = f"{type(error).__name__}: {error}"
        progress.say("failed", error=text[:500], seconds=time.monotonic() - began)
    else:
        progress.say("completed", seconds=time.monotonic() - began)
    while not (folder / "release").exists():
        time.sleep(LOOK_S)


def _answer_in_background(folder: Path, rank: int, group: Any, progress: Progress) -> None:
    """Let a thread write this rank's dump when the drill asks, whatever the main thread does."""

    def answer() -> None:
        while not (folder / "ask").exists():
            time.sleep(LOOK_S)
        try:
            dump, recorder = _dump(type(group).__name__)
            path = folder / "asked" / f"trace_rank_{rank}"
            path.with_suffix(".part").write_bytes(dump)
            os.replace(path.with_suffix(".part"), path)
        except Exception as error:  # whatever it was, it is the answer
            progress.say("not dumped", error=f"{type(error).__name__}: {error}"[:500])
            return
        digest = hashlib.sha256(dump).hexdigest()
        progress.say("dumped", size=len(dump), sha256=digest, recorder=recorder, pid=os.getpid())

    threading.Thread(target=answer, daemon=True).start()


def _dump(built: str) -> tuple[bytes, str]:
    """Return the recorder's dump of this process, and the name of the recorder."""
    import torch._C._distributed_c10d as c10d

    # Without stacks: the first time that PyTorch makes them readable takes up to ten seconds.
    if built == "ProcessGroupNCCL" and hasattr(c10d, "_dump_nccl_trace"):
        return c10d._dump_nccl_trace(True, False, False), "nccl"
    names = _RECORDERS.get(built, ("gloo",))
    try:
        found = [c10d._dump_fr_trace(True, False, False, name) for name in names]
    except TypeError:  # up to 2.14 there is one recorder besides that of NCCL
        return c10d._dump_fr_trace(True, False, False), "the only one"
    # A recorder to which nobody wrote gives a valid dump without operations: the longest says most.
    longest = max(found, key=len)
    return longest, names[found.index(longest)]


if __name__ == "__main__":
    main()
