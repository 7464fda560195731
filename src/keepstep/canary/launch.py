"""Runs one cell once: starts its ranks under the probe, waits, and collects what they recorded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from keepstep.canary.cell import Cell, Role
from keepstep.canary.processes import Processes
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.stack.exposed import exposed
from keepstep.stack.named import Stack

GRACE_S = 10.0  # for the other ranks when one has failed: their own errors are evidence
TAIL = 4000  # characters of output that a record keeps
_SHARED_MEMORY = Path("/dev/shm")

# What a rank may know of the machine; everything else a cell or a stack names, so that two people
# who rehearse the same plan run the same thing.
_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
_PASSED_PREFIXES = ("LC_", "NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "SLURM_")
# One of these in an operator's shell would be an answer to another question.
_NEVER = ("TORCHELASTIC_", "TORCH_FR_", "SLURM_JWT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every run of a job has in common: proven to be the same by its digest."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()  # the user's launcher; "{job}" stands for what it starts


def run_cell(
    cell: Cell,
    job: Job,
    *,
    stack: Stack,
    folder: Path,
    pair: int,
    order: int,
    limit_s: float,
    probe: Sequence[str] = (),
) -> RunRecord:
    """Run ``cell`` and return what was seen; nothing of it is running afterwards.

    Args:
        cell: What to run.
        job: Its script.
        stack: The environment to run it in.
        folder: For records and output of the ranks; made when missing.
        pair: Number of the round.
        order: Position among all runs.
        limit_s: Seconds until it counts as hung.
        probe: Options for the probe, such as a planted slowdown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (*job.arguments, "--backend", cell.backend)
    variables = {**stack.variables, **cell.variables}
    started, begin = datetime.now(UTC), time.monotonic()
    with Processes() as processes, contextlib.ExitStack() as files:
        port = _free_port()
        for rank, command in enumerate(_commands(cell, job, arguments, stack, folder, probe)):
            output = files.enter_context(open(folder / f"output-{rank}.txt", "wb"))
            processes.start(
                command, _variables(cell, job, stack, rank, port), output, job.script.parent
            )
        ended = processes.wait(limit_s, GRACE_S)
        left = processes.left_over() if ended else []
        codes = [each.poll() for each in processes.started]
        processes.kill()
        pids = [each.pid for each in processes.started]
    ranks, unreadable = _records(folder, cell.world_size)
    outcome, reason = _outcome(cell, ended, codes, ranks, limit_s)
    return RunRecord(
        cell=cell.id,
        pair=pair,
        order=order,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        outcome=outcome,
        exit_code=next((code for code in codes if code), 0) if ended else None,
        reason="; ".join(filter(None, (reason, *unreadable))),
        launch=(*job.launch, *probe, job.script.name, *arguments),
        variables=variables,
        stack=stack.name,
        job=job.name,
        job_sha256=hashlib.sha256(job.script.read_bytes()).hexdigest(),
        ranks=ranks,
        leftovers=(*left, *_left_in_memory(pids)),
        output_tail=_tail(folder, codes),
    )


def _commands(
    cell: Cell,
    job: Job,
    arguments: Sequence[str],
    stack: Stack,
    folder: Path,
    probe: Sequence[str],
) -> list[list[str]]:
    """Return one command a rank, or the user's launcher alone."""
    probed = ["-m", "keepstep.probe", "--record", str(folder), *probe]
    probed += [str(job.script.resolve()), *arguments]
    if not job.launch:
        return [stack.command(*probed) for _ in range(cell.world_size)]
    line = [part for word in job.launch for part in (probed if word == "{job}" else [word])]
    return [stack.command(*line)]


def _variables(cell: Cell, job: Job, stack: Stack, rank: int, port: int) -> dict[str, str]:
    """Return the environment of one rank, torchrun's variables among it."""
    found = {name: value for name, value in os.environ.items() if _is_passed(name)}
    found["PYTHONPATH"] = str(exposed())
    found["PYTHONDONTWRITEBYTECODE"] = "1"
    found["OMP_NUM_THREADS"] = "1"  # as torchrun sets it for more than one process
    if not cell.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ""
    if not job.launch:
        found |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(cell.world_size),
            "LOCAL_WORLD_SIZE": str(cell.world_size),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    return {**found, **stack.variables, **cell.variables}


def _is_passed(name: str) -> bool:
    if name.startswith(_NEVER):
        return False
    return name in _PASSED or name.startswith(_PASSED_PREFIXES)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _records(folder: Path, world_size: int) -> tuple[tuple[RankRecord, ...], list[str]]:
    """Return the ranks' records, and why others are missing."""
    found, missing = [], []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        try:
            found.append(RankRecord.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            missing.append(f"rank {rank} left no record")
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            missing.append(f"the record of rank {rank} is damaged ({place}: {first['msg']})")
    return tuple(found), missing


def _outcome(
    cell: Cell,
    ended: bool,
    codes: Sequence[int | None],
    ranks: Sequence[RankRecord],
    limit_s: float,
) -> tuple[Outcome, str]:
    failed = [(rank, code) for rank, code in enumerate(codes) if code]
    if not ended and not failed:
        return Outcome.HANG, f"not ended after {limit_s:.0f} s; killed"
    if not failed:
        return Outcome.COMPLETE, ""
    said = next((f": {each.error}" for each in ranks if each.error), "")
    ends = ", ".join(f"rank {rank} ended with {_how(code)}" for rank, code in failed)
    if cell.role is Role.REFUSAL:
        return Outcome.REFUSED, f"{ends}{said}"
    return Outcome.CRASH, f"{ends}{said}"


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _left_in_memory(pids: Sequence[int]) -> list[str]:
    """Return shared memory that carries the number of one of our processes in its name."""
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(_SHARED_MEMORY))
        return [f"shared memory {name}" for name in names if _names_one_of(name, pids)]
    return []


def _names_one_of(name: str, pids: Sequence[int]) -> bool:
    numbers = "".join(each if each.isdigit() else " " for each in name).split()
    return any(str(pid) in numbers for pid in pids)


def _tail(folder: Path, codes: Sequence[int | None]) -> str:
    """Return the end of the output of the first rank that failed, else of rank 0."""
    rank = next((rank for rank, code in enumerate(codes) if code), 0)
    data = (folder / f"output-{rank}.txt").read_bytes()
    return data[-TAIL:].decode(errors="replace")
