"""Runs one cell once: starts its ranks under the probe, waits, and collects what they recorded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from keepstep.canary.cell import Cell, Role
from keepstep.canary.matrix import arguments
from keepstep.canary.plan import Plan
from keepstep.canary.processes import Processes
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.canary.schedule import Turn
from keepstep.canary.torchrun import free_port, torchrun_variables
from keepstep.stack.exposed import exposed
from keepstep.stack.named import Stack

GRACE_S = 10.0  # for the other ranks when one has failed: their own errors are evidence
TAIL = 4000  # characters of output that a record keeps
_SHARED_MEMORY = Path("/dev/shm")
_MARK = "mark"  # of the run's processes, while they run

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


def run_cell(
    plan: Plan,
    cell: Cell,
    *,
    script: Path,
    stack: Stack,
    folder: Path,
    turn: Turn,
) -> RunRecord:
    """Run ``cell`` once and return what was seen; nothing of it is running afterwards.

    Args:
        plan: What it belongs to.
        cell: What to run.
        script: Of its job.
        stack: The environment to run it in.
        folder: For records and output of the ranks; emptied first.
        turn: Which run of the rehearsal it is.
    """
    _end_interrupted(folder / _MARK)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    given = arguments(plan, cell, str(folder / "checkpoint"))
    launch = [word.replace("{ranks}", str(cell.world_size)) for word in plan.jobs[cell.job].launch]
    planted = _planted(plan, cell)
    probed = ["-m", "keepstep.probe", "--record", str(folder), *planted, str(script), *given]
    own = {**stack.variables, **cell.variables}
    started, begin = datetime.now(UTC), time.monotonic()
    with Processes() as processes, contextlib.ExitStack() as files:
        (folder / _MARK).write_text(processes.mark)
        port = free_port()
        for rank in range(1 if launch else cell.world_size):
            output = files.enter_context(open(folder / f"output-{rank}.txt", "wb"))
            variables = {
                **_machine_variables(cell),
                **torchrun_variables(rank, cell.world_size, port),
                **own,
            }
            if launch:
                variables = {**_machine_variables(cell), **own}
            processes.start(stack.command(*launch, *probed), variables, output, script.parent)
        ended = processes.wait(plan.limits.run_s, GRACE_S)
        left = processes.left_over() if ended else []
        codes = [each.poll() for each in processes.started]
        processes.kill()
        (folder / _MARK).unlink(missing_ok=True)
        pids = [each.pid for each in processes.started]
    ranks, unreadable = _records(folder, cell.world_size)
    outcome, reason = _outcome(cell, ended, codes, ranks, plan.limits.run_s)
    return RunRecord(
        cell=cell.id,
        pair=turn.pair,
        order=turn.order,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        outcome=outcome,
        exit_code=next((code for code in codes if code), 0) if ended else None,
        reason="; ".join(filter(None, (reason, *unreadable))),
        launch=(*launch, *planted, script.name, *arguments(plan, cell, "checkpoint")),
        variables=own,
        stack=stack.name,
        job=cell.job,
        job_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
        ranks=ranks,
        leftovers=(*left, *_left_in_memory(pids)),
        output_tail=_tail(folder, codes),
    )


def _end_interrupted(mark: Path) -> None:
    """End what a run left behind that was itself killed, and so could not."""
    with contextlib.suppress(OSError):
        if found := mark.read_text():
            Processes(mark=found).kill()


def _planted(plan: Plan, cell: Cell) -> list[str]:
    """Return the options of the probe for a control."""
    factor = f"{1 + plan.planted:g}"
    options = {Role.SLOWER: ["--slow", factor], Role.FASTER: ["--faster", factor]}
    return options.get(cell.role, [])


def _machine_variables(cell: Cell) -> dict[str, str]:
    """Return what a rank may know of the machine."""
    found = {name: value for name, value in os.environ.items() if _is_passed(name)}
    found["PYTHONPATH"] = str(exposed())
    found["OMP_NUM_THREADS"] = "1"  # as torchrun sets it for more than one process
    if not cell.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ""
    return found


def _is_passed(name: str) -> bool:
    if name.startswith(_NEVER):
        return False
    return name in _PASSED or name.startswith(_PASSED_PREFIXES)


def _records(folder: Path, world_size: int) -> tuple[tuple[RankRecord, ...], list[str]]:
    """Return the ranks' records, and why others are missing."""
    found, missing = [], []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for for ever
                missing.append(f"the record of rank {rank} is no file")
                continue
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
    try:
        with open(folder / f"output-{rank}.txt", "rb") as file:  # it may be larger than the memory
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode(errors="replace")
    except FileNotFoundError:
        return "(the job removed its output)"
