"""Make flight-recorder dumps of jobs that hang in known ways, on one machine with NVIDIA GPUs.

    python docs/evidence/gpu/diagnosis/make_dumps.py OUT [--backend NAME ...] [--only CASE ...]

Needs PyTorch 2.15 and nothing else. Two ranks get a GPU each, so that they use the link between the
GPUs; four share what there is, each a host of its own to NCCL, which then uses sockets. Each case
has its own rendezvous, its processes have sessions of their own and end after a fixed time at the
latest; several cases run side by side. OUT/BACKEND/CASE-RANKS then holds ``truth.json`` (what was
done, who is to blame), ``ranks.json`` (exits, times, files) and the dumps: ``own`` are those that
the backend wrote by itself, ``asked`` those that a side thread of each rank asked its recorders for
in the middle of the hang.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
LIMIT_S = 90.0
GRACE_S = 3.0  # once only sleeping ranks are left
SPELLINGS = {
    # name in the results: (what init_process_group is asked for, variables)
    "nccl": ("nccl", {}),
    "nccl-legacy": ("nccl-legacy", {}),
    "nccl-lazy": ("nccl-lazy", {}),
    "nccl-without-nccl2": ("nccl", {"TORCH_DIST_USE_NCCL2": "0"}),
    "gloo": ("gloo", {}),
}
WHAT = {
    # case: (fault, what the culprit does in step 5)
    "stall": ("stalled", "sleeps before the all-reduce of gradients"),
    "size": ("mismatch", "gives that all-reduce 1,048,576 elements, the others 1,024"),
    "skip": ("mismatch", "leaves out the all-reduce of its tensor-parallel group and goes on"),
    "skip-2": ("mismatch", "leaves out the all-reduce of gradients and goes on"),
    "skip-world": ("mismatch", "leaves out the all-reduce of gradients and goes on"),
    "extra": ("extra_collective", "all-reduces one element more at the end of the step, alone"),
    "extra-equal": (
        "extra_collective",
        "all-reduces once more before the gradients, alone; all these calls have one size",
    ),
    "pipeline": ("mismatch", "does not send to the next stage and goes on"),
    "pipeline-stall": ("stalled", "sleeps before it sends to the next stage"),
    "cascade": ("stalled", "sleeps before the all-reduce of tp [2, 3]; the dp groups wait behind"),
    "none": ("", "nothing: seven healthy steps"),
}
CULPRITS = {
    # case: (of two ranks, of four)
    "stall": (1, 2),
    "size": (1, 1),
    "skip": (1, 2),
    "skip-world": (1, 2),
    "extra": (0, 0),
    "extra-equal": (0, 0),
    "pipeline": (0, 1),
    "pipeline-stall": (0, 2),
    "cascade": (1, 3),
    "none": (-1, -1),
}
CASES = (
    *((case, 2) for case in ("stall", "size", "skip", "extra", "pipeline")),
    *((case, 4) for case in ("stall", "size", "skip", "skip-world", "extra", "extra-equal")),
    *((case, 4) for case in ("pipeline", "pipeline-stall", "cascade", "none")),
)


@dataclass
class Running:
    """One case under way."""

    spelling: str
    case: str
    ranks: int
    folder: Path
    store: dist.TCPStore
    processes: list[subprocess.Popen[bytes]]
    began: float
    ended: dict[int, float] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)  # ended by us


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(spelling: str, case: str, ranks: int, out: Path) -> Running:
    """Start the ranks of one case."""
    backend, variables = SPELLINGS[spelling]
    folder = out / spelling / f"{case}-{ranks}"
    (folder / "own").mkdir(parents=True)
    gpus = torch.cuda.device_count()
    linked = ranks == 2 and gpus >= 2
    fault, does = WHAT.get(f"{case}-{ranks}", WHAT[case])
    culprit = CULPRITS[case][ranks == 4]
    truth = {
        "case": case,
        "ranks": ranks,
        "backend": backend,
        "variables": variables,
        "link": "one GPU each" if linked else f"{gpus} GPUs shared, sockets on loopback",
        "culprits": [] if culprit < 0 else [culprit],
        "fault": fault,
        "what": does,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    prefix = str(folder / "own" / "comm_lib_trace_rank_")
    processes = []
    for rank in range(ranks):
        environment = {
            "NCCL_SOCKET_IFNAME": "lo",
            **os.environ,
            **variables,
            **({} if linked else {"NCCL_HOSTID": f"host-{rank}"}),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank % max(gpus, 1)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_FR_DUMP_TEMP_FILE": prefix,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, str(HERE / "hang.py"), case, "--culprit", str(culprit)]
        command += ["--backend", backend, "--out", str(folder)]
        with open(folder / f"rank-{rank}.log", "wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        processes.append(process)
    return Running(spelling, case, ranks, folder, store, processes, time.time())


def look(running: Running) -> bool:
    """Note who ended; return whether the case is over."""
    now = time.time()
    for rank, process in enumerate(running.processes):
        if rank not in running.ended and process.poll() is not None:
            running.ended[rank] = now
    alive = [rank for rank in range(running.ranks) if rank not in running.ended]
    sleepers = [rank for rank in alive if "stalled_at" in facts_of(running, rank)]
    quiet = bool(running.ended) and now - max(running.ended.values()) > GRACE_S
    over = not alive or (quiet and alive == sleepers) or now - running.began > LIMIT_S
    if over:
        for rank in alive:
            running.stopped.append(rank)
            os.killpg(running.processes[rank].pid, signal.SIGKILL)
            running.processes[rank].wait()
    return over


def facts_of(running: Running, rank: int) -> dict[str, Any]:
    """What a rank told of itself."""
    try:
        found: dict[str, Any] = json.loads((running.folder / f"rank-{rank}.json").read_text())
        return found
    except (FileNotFoundError, ValueError):
        return {}


def finish(running: Running) -> dict[str, Any]:
    """Write what happened to each rank and return it."""
    ranks = []
    told = {rank: facts_of(running, rank) for rank in range(running.ranks)}
    wrong_at = min((f["wrong_step_at"] for f in told.values() if "wrong_step_at" in f), default=0.0)

    def since(moment: float | None) -> float | None:
        return None if moment is None or not wrong_at else round(moment - wrong_at, 1)

    for rank, process in enumerate(running.processes):
        own = running.folder / "own" / f"comm_lib_trace_rank_{rank}"
        facts = told[rank]
        ranks.append(
            {
                "rank": rank,
                "built": facts.get("built"),
                "exit": "ended by us" if rank in running.stopped else process.returncode,
                "ended_after_s": since(running.ended.get(rank)),
                "last_step": facts.get("last_step", 0),
                "finished": "finished_at" in facts,
                "own_dump_after_s": since(own.stat().st_mtime) if own.exists() else None,
                "own_dump_bytes": own.stat().st_size if own.exists() else 0,
                "asked_after_s": since(facts.get("asked_at")),
                "asking_took_s": facts.get("asking_took_s"),
                "recorder_bytes": facts.get("recorder_bytes"),
                "last_words": last_words(running.folder / f"rank-{rank}.log"),
            }
        )
    result = {
        "spelling": running.spelling,
        **json.loads((running.folder / "truth.json").read_text()),
        "wall_s": round(time.time() - running.began, 1),
        "per_rank": ranks,
    }
    (running.folder / "ranks.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def last_words(log: Path) -> list[str]:
    """The lines of a log that say why a process ended."""
    lines = log.read_text(errors="replace").splitlines()
    telling = [line for line in lines if "Error" in line or "imeout" in line or "Fatal" in line]
    return [line[:240] for line in (telling[:1] + telling[-2:] if len(telling) > 3 else telling)]


def main() -> None:
    """Run the cases side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", action="append", choices=sorted(SPELLINGS))
    parser.add_argument("--only", action="append", choices=sorted({case for case, _ in CASES}))
    parser.add_argument("--processes", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=400.0, help="start nothing later")
    options = parser.parse_args()
    spellings = options.backend or [name for name in SPELLINGS if name != "gloo"]
    waiting = [
        (spelling, case, ranks)
        for case, ranks in CASES
        for spelling in spellings
        if not options.only or case in options.only
    ]
    began = time.monotonic()
    running: list[Running] = []
    while waiting or running:
        for one in [each for each in running if look(each)]:
            running.remove(one)
            told = finish(one)
            exits = [rank["exit"] for rank in told["per_rank"]]
            dumps = [rank["own_dump_bytes"] for rank in told["per_rank"]]
            print(one.spelling, one.case, one.ranks, told["wall_s"], exits, dumps, flush=True)
        late = time.monotonic() - began > options.seconds
        if late and waiting:
            print("not run:", waiting, flush=True)
            waiting = []
        while waiting:
            spelling, case, ranks = waiting[0]
            if sum(each.ranks for each in running) + ranks > options.processes and running:
                break
            del waiting[0]
            running.append(start(spelling, case, ranks, options.out))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
