"""Runs the ranks of the hang drill, and keeps what they said and what was seen of them."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.canary.processes import Processes
from keepstep.canary.torchrun import free_port
from keepstep.drills.limits import Limits
from keepstep.drills.surroundings import needs_gpu, rank_variables
from keepstep.runtime.procfs import state_and_work
from keepstep.stack.named import Stack

SCRIPT = Path(__file__).with_name("inside") / "held.py"
WARM_UP = 3  # collectives before the one that hangs; as in inside/held.py
OWN = "own"  # folder in which ranks write dumps by themselves
ASKED = "asked"  # folder for the dumps that were asked for
_SUSPECTED = 0.6  # of the timeout: when keepstep run asks, too
_LOOK_S = 0.05
_ANSWER_S = 15.0  # for the ranks to write what was asked for
_LEAVE_S = 20.0  # for the ranks to end when they are let go

Line = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Observed:
    """What the ranks said, by rank, and what was seen from outside."""

    world_size: int
    held: int
    pids: list[int] = field(default_factory=list)
    started: float = 0.0  # seconds since 1970
    said: dict[int, list[Line]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # exit codes before they were let go
    end_s: dict[int, float] = field(default_factory=dict)  # monotonic; of those that ended
    dump_s: dict[int, float] = field(default_factory=dict)  # monotonic; of dumps by themselves
    state: str = ""  # of the held rank's main thread when the last wait had ended (proc_pid_stat)
    looked: float = 0.0  # monotonic; when that was
    left_over: tuple[str, ...] = ()
    timed_out: bool = False  # the drill's own limit passed

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that are to wait."""
        return tuple(rank for rank in range(self.world_size) if rank != self.held)

    def fired_at(self, rank: int, operation_s: float) -> float | None:
        """Return when the timeout of a rank that waits had fired (monotonic); None: not seen.

        A rank that is aborted, or whose main thread never comes back, cannot say it: then it is the
        earliest moment that is possible. That it has fired is known by the abort, or by its dump.
        """
        entered, failed = self.first(rank, "entered"), self.first(rank, "failed")
        if failed is not None:
            return float(failed["at"])
        if entered is not None and (self.ends.get(rank, 0) < 0 or rank in self.dump_s):
            return float(entered["at"]) + operation_s
        return None

    def first(self, rank: int, *facts: str) -> Line | None:
        """Return the first line of a rank that says one of ``facts``."""
        return next((line for line in self.said.get(rank, ()) if line["fact"] in facts), None)

    def last(self, rank: int, *facts: str) -> Line | None:
        """Return the last one."""
        lines = reversed(self.said.get(rank, ()))
        return next((line for line in lines if line["fact"] in facts), None)


def run_held(
    stack: Stack,
    backend: str,
    *,
    folder: Path,
    limits: Limits,
    held: int,
    world_size: int,
    variables: Callable[[int], Mapping[str, str]],
) -> Observed:
    """Hold rank ``held`` before an all-reduce that the others enter; nothing runs afterwards.

    Args:
        stack: Where to run.
        backend: The spelling.
        folder: For what the ranks leave; emptied first.
        limits: See there.
        held: The rank to hold.
        world_size: Ranks in all.
        variables: More variables of a rank, such as a lever.
    """
    for name in (OWN, ASKED):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    for pattern in ("progress-*.jsonl", "ask", "release", "stack-*.txt"):
        for path in folder.glob(pattern):
            path.unlink()
    observed = Observed(world_size=world_size, held=held, started=time.time())
    with Processes() as processes, contextlib.ExitStack() as files:
        port = free_port()
        for rank in range(world_size):
            processes.start(
                stack.command(*_arguments(folder, backend, held, limits)),
                {**_variables(stack, backend, folder, rank, world_size, port), **variables(rank)},
                files.enter_context(open(folder / f"output-{rank}.txt", "wb")),
                folder,
            )
        observed.pids = [each.pid for each in processes.started]
        _watch(observed, processes, folder, limits)
        left = []
        if _is_complete(observed):
            _await_answers(observed, processes, folder)
            (folder / "release").touch()
            if not processes.wait(_LEAVE_S, _LEAVE_S):
                left.append("a rank that did not end when it was let go")
        processes.kill()
        observed.left_over = (*left, *processes.left_over())
    _read(observed, folder)
    return observed


def _arguments(folder: Path, backend: str, held: int, limits: Limits) -> list[str]:
    limit = limits.start_s + limits.operation_s + limits.late_s + limits.abort_s + _LEAVE_S
    return [
        *(str(SCRIPT), "--folder", str(folder), "--backend", backend, "--held", str(held)),
        *("--timeout", f"{limits.operation_s:g}", "--limit", f"{limit:g}"),
    ]


def _variables(
    stack: Stack, backend: str, folder: Path, rank: int, world_size: int, port: int
) -> dict[str, str]:
    prefix = str(folder / OWN / "trace_rank_")
    return {
        **rank_variables(
            stack, rank=rank, world_size=world_size, port=port, on_gpu=needs_gpu(backend)
        ),
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,  # its name before PyTorch 2.15
    }


def _watch(observed: Observed, processes: Processes, folder: Path, limits: Limits) -> None:
    """Follow the ranks until the last wait has ended, ask once in between, and look then."""
    deadline = time.monotonic() + limits.start_s
    entered: float | None = None
    while time.monotonic() < deadline:
        _read(observed, folder)
        _note_ends(observed, processes)
        _note_dumps(observed, folder)
        if entered is None and _all_said(observed, observed.waiting, "entered"):
            entered = time.monotonic()
            abort = limits.abort_s if _on_gpu(observed) else 0.0
            deadline = entered + limits.operation_s + limits.late_s + abort
        if entered is not None and time.monotonic() > entered + _SUSPECTED * limits.operation_s:
            (folder / "ask").touch()
        if all(_is_over(observed, rank) for rank in observed.waiting):
            break
        if _stands(observed, limits):
            break
        early = entered is None or time.monotonic() < entered + limits.operation_s
        if early and observed.ends:
            break  # a rank that ended before the timeout: there is nothing to wait for
        time.sleep(_LOOK_S)
    else:
        observed.timed_out = not all(_has_fired(observed, rank) for rank in observed.waiting)
    observed.looked = time.monotonic()
    observed.state = state_and_work(observed.pids[observed.held])[0]


def _is_complete(observed: Observed) -> bool:
    """Return whether there was a hang: who did not see one asks nobody about it."""
    fired = all(_has_fired(observed, rank) for rank in observed.waiting)
    return not observed.timed_out and fired


def _await_answers(observed: Observed, processes: Processes, folder: Path) -> None:
    """Wait until each rank that lives has written its dump, or said why it cannot."""
    (folder / "ask").touch()
    until = time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        _read(observed, folder)
        _note_ends(observed, processes)
        living = [rank for rank in range(observed.world_size) if rank not in observed.ends]
        if _all_said(observed, living, "dumped", "not dumped"):
            # One more line proves that the rank was still held after the last wait had ended.
            line = observed.last(observed.held, "still held")
            if observed.held in observed.ends or (line and line["at"] > observed.looked):
                return
        time.sleep(_LOOK_S)


def _all_said(observed: Observed, ranks: Iterable[int], *facts: str) -> bool:
    return all(observed.first(rank, *facts) for rank in ranks)


def _is_over(observed: Observed, rank: int) -> bool:
    return rank in observed.ends or observed.first(rank, "failed", "completed") is not None


def _has_fired(observed: Observed, rank: int) -> bool:
    """Return whether a timeout is known to have fired: a rank that dumped may stand for minutes."""
    return _is_over(observed, rank) or rank in observed.dump_s


def _stands(observed: Observed, limits: Limits) -> bool:
    """Return whether every timeout has fired, and the ranks that dumped are there all the same."""
    if not all(_has_fired(observed, rank) for rank in observed.waiting):
        return False
    last = max(observed.dump_s[rank] for rank in observed.waiting if rank in observed.dump_s)
    return time.monotonic() > last + limits.after_dump_s


def _on_gpu(observed: Observed) -> bool:
    line = observed.first(observed.held, "grouped")
    return line is not None and line["device"] == "cuda"


def _note_ends(observed: Observed, processes: Processes) -> None:
    for rank, process in enumerate(processes.started):
        code = process.poll()
        if code is not None and rank not in observed.ends:
            observed.ends[rank] = code
            observed.end_s[rank] = time.monotonic()


def _note_dumps(observed: Observed, folder: Path) -> None:
    for rank in range(observed.world_size):
        if rank not in observed.dump_s and (folder / OWN / f"trace_rank_{rank}").exists():
            observed.dump_s[rank] = time.monotonic()


def _read(observed: Observed, folder: Path) -> None:
    for rank in range(observed.world_size):
        path = folder / f"progress-{rank}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            # The last line may be in the making.
            lines = [
                line for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"
            ]
            observed.said[rank] = [json.loads(line) for line in lines]
