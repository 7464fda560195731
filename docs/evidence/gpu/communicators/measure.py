"""What communicators cost and what a group refuses, for each spelling of the NCCL backend.

    python docs/evidence/gpu/communicators/measure.py OUT.json

Needs PyTorch 2.15 and two NVIDIA GPUs that nobody else uses meanwhile; with one GPU the rows that
need two are left out and said to be. The memory is what is in use on the card, all processes
together, so these runs come one after the other; the refusals come side by side. A refusal is what
a script gets that does nothing about it: its last line of standard error, and its exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT_S = 80.0
GROUPS = 3
SPELLINGS: dict[str, tuple[str, dict[str, str]]] = {
    "nccl": ("nccl", {}),
    "nccl, lazy_init": ("nccl", {"LAZY_INIT": "1"}),
    "nccl-legacy": ("nccl-legacy", {}),
    "nccl-legacy, device_id": ("nccl-legacy", {"DEVICE_ID": "1"}),
    "nccl-lazy": ("nccl-lazy", {}),
    "nccl, TORCH_DIST_USE_NCCL2=0": ("nccl", {"TORCH_DIST_USE_NCCL2": "0"}),
}
REFUSALS = {
    # name: (ranks, GPUs needed)
    "tensor on another GPU": (1, 2),
    "tensor on another GPU, device_id": (1, 2),
    "tensor on the CPU": (1, 1),
    "several devices in one process": (1, 2),
    "several devices in each of two processes": (2, 2),
    "a list of tensors on several devices": (1, 2),
    "two ranks on one GPU": (2, 1),
}


def used_mib(device: torch.device) -> int:
    """Memory in use on the card."""
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) >> 20


class Meeting:
    """Ranks wait for each other without a communicator."""

    def __init__(self, store: dist.Store, ranks: int) -> None:
        self.store, self.ranks, self.number = store, ranks, 0

    def meet(self) -> None:
        """Return once all ranks are here."""
        self.number += 1
        self.store.add(f"meeting-{self.number}", 1)
        while self.store.add(f"meeting-{self.number}", 0) < self.ranks:
            time.sleep(0.01)

    def leave(self, host: bool) -> None:
        """Say that this rank comes no more; whoever hosts the store waits for all to say so."""
        self.store.add("left", 1)
        while host and self.store.add("left", 0) < self.ranks:
            time.sleep(0.01)


def memory(backend: str) -> dict[str, Any]:
    """Make and use groups of two ranks, one GPU each; return the memory after each step."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    ones = torch.ones(1024, device=device)
    torch.cuda.synchronize()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MEETING_PORT"]), ranks, is_master=rank == 0)
    meeting = Meeting(store, ranks)
    rows: list[tuple[str, int, float]] = []

    def note(what: str, began: float) -> None:
        torch.cuda.synchronize()
        took = time.monotonic() - began
        meeting.meet()
        time.sleep(0.2)
        rows.append((what, used_mib(device), round(took, 3)))
        meeting.meet()

    options = None
    if "LAZY_INIT" in os.environ:
        options = dist.ProcessGroupNCCL.Options()
        options.lazy_init = True
    bound = device if "DEVICE_ID" in os.environ else None
    note("before", time.monotonic())
    now = time.monotonic()
    dist.init_process_group(backend, device_id=bound, pg_options=options)
    note("group of all ranks made", now)
    now = time.monotonic()
    dist.all_reduce(ones)
    note("group of all ranks used", now)
    groups = []
    for number in range(GROUPS):
        now = time.monotonic()
        group = dist.new_group([0, 1], pg_options=options)
        assert isinstance(group, dist.ProcessGroup)
        groups.append(group)
        note(f"sub-group {number + 1} made", now)
    for number, group in enumerate(groups):
        now = time.monotonic()
        dist.all_reduce(ones, group=group)
        note(f"sub-group {number + 1} used", now)
    now = time.monotonic()
    if rank == 0:
        dist.send(ones, 1)
    else:
        dist.recv(ones, 0)
    note("one send and receive", now)
    world = dist.group.WORLD
    assert world is not None
    built = type(world._get_backend(device)).__name__
    meeting.leave(host=rank == 0)
    return {"built": built, "rows": rows}


def refuse(case: str, backend: str) -> None:
    """Do what a group may refuse; whatever it raises ends the process."""
    rank = int(os.environ["RANK"])
    first = torch.device("cuda", 0)
    torch.cuda.set_device(first)
    bound = first if case.endswith("device_id") else None
    dist.init_process_group(backend, device_id=bound, timeout=timedelta(seconds=20))
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if case == "two ranks on one GPU":
        devices = devices[:1]
    elif case.startswith("tensor on the CPU"):
        devices = [torch.device("cpu")]
    elif case.startswith("tensor on another GPU"):
        dist.all_reduce(torch.ones(8, device=first))
        devices = devices[1:]
    elif case.startswith("several") and rank == 1:
        devices = devices[::-1]  # rank and device differ in both processes
    tensors = [torch.ones(8, device=device) for device in devices]
    if case.startswith("a list"):
        dist.all_reduce_coalesced(tensors)
    else:
        for tensor in tensors:
            dist.all_reduce(tensor)
            print(f"all_reduce on {tensor.device}: done", flush=True)
    torch.cuda.synchronize()
    print("sums", [tensor[0].item() for tensor in tensors], flush=True)
    dist.destroy_process_group()


def free_port() -> str:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(kind: str, name: str, spelling: str, ranks: int) -> list[subprocess.Popen[str]]:
    """Start the ranks of one run."""
    backend, variables = SPELLINGS[spelling]
    port, meeting_port = free_port(), free_port()
    started = []
    for rank in range(ranks):
        environment = {
            "NCCL_SOCKET_IFNAME": "lo",
            **os.environ,
            **variables,
            **({"NCCL_HOSTID": f"host-{rank}"} if name.startswith("several") else {}),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank if kind == "memory" else 0),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "MEETING_PORT": meeting_port,
            "OMP_NUM_THREADS": "1",
        }
        started.append(
            subprocess.Popen(
                [sys.executable, __file__, "--rank", kind, "--name", name, "--backend", backend],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    return started


def end(started: list[subprocess.Popen[str]], deadline: float) -> list[dict[str, Any]]:
    """Wait for the ranks of one run; return how each ended."""
    found = []
    for process in started:
        try:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            code: int | str = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            code = f"ended by us after {LIMIT_S:.0f} s"
        lines = [line for line in err.splitlines() if line.strip()]
        raised = [line for line in lines if "Error" in line or "terminate" in line]
        found.append({"exit": code, "out": out.splitlines()[-40:], "error": raised[-3:]})
    return found


def run_memory(spelling: str) -> dict[str, Any]:
    """One row of the table of memory."""
    started = start("memory", "memory", spelling, 2)
    ends = end(started, time.monotonic() + LIMIT_S)
    try:
        ranks = [json.loads(each["out"][-1]) for each in ends]
    except (ValueError, IndexError):
        return {"spelling": spelling, "failed": ends}
    return {"spelling": spelling, "ranks": ranks}


def run_refusals() -> list[dict[str, Any]]:
    """All refusals of all spellings, side by side."""
    gpus = torch.cuda.device_count()
    spellings = [name for name in SPELLINGS if "," not in name or "USE_NCCL2" in name]
    cases = [(case, ranks) for case, (ranks, needs) in REFUSALS.items() if needs <= gpus]
    under_way = [
        (case, spelling, start("refuse", case, spelling, ranks))
        for case, ranks in cases
        for spelling in spellings
    ]
    deadline = time.monotonic() + LIMIT_S
    return [
        {"case": case, "spelling": spelling, "ranks": end(started, deadline)}
        for case, spelling, started in under_way
    ]


def main() -> None:
    """Measure, or be one rank of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--part", choices=("memory", "refusals"))
    parser.add_argument("--rank", choices=("memory", "refuse"))
    parser.add_argument("--name", default="")
    parser.add_argument("--backend", default="")
    options = parser.parse_args()
    if options.rank == "memory":
        print(json.dumps(memory(options.backend)))
        return
    if options.rank == "refuse":
        refuse(options.name, options.backend)
        return
    gpus = torch.cuda.device_count()
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "gpus": [torch.cuda.get_device_name(number) for number in range(gpus)],
        "not run": [case for case, (_, needs) in REFUSALS.items() if needs > gpus]
        + ([] if gpus > 1 else ["memory"]),
    }
    if options.part != "refusals" and gpus > 1:
        report["memory"] = []
        for spelling in SPELLINGS:
            report["memory"].append(run_memory(spelling))
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.part != "memory":
        report["refusals"] = run_refusals()
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
