"""One run of a small training job on a stack, under the probe, as a drill needs it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from keepstep.canary.processes import Processes
from keepstep.canary.record import RankRecord
from keepstep.canary.torchrun import free_port
from keepstep.drills.surroundings import needs_gpu, rank_variables
from keepstep.stack.named import Stack

RANKS = 2
# Across builds or backends a sum may be taken in another order; on one of them it may not.
ACROSS = 1e-5  # relative; losses of 2.14.1 and 2.15.0 on a CPU were equal bit for bit
_GRACE_S = 10.0  # for the other ranks when one has failed: their own errors are evidence


@dataclass(frozen=True, slots=True)
class SavingJob:
    """A script that can save and resume.

    It takes ``--steps N --seed S --backend B [--checkpoint DIR [--resume]]``, saves at its end and
    counts ``--steps`` from where it begins. ``arguments`` are the plan's. They come first: what a
    drill gives counts where both name an option, and what else the script cannot do without is
    there.
    """

    script: Path
    arguments: tuple[str, ...] = ()  # {backend}, {seed} and {checkpoint} are filled in

    def words(self, backend: str, folder: Path, arguments: Sequence[str]) -> list[str]:
        """Return the command line after the script, for a run whose folder is ``folder``."""
        filled = {"{backend}": backend, "{seed}": "0", "{checkpoint}": str(folder / "checkpoint")}
        given = []
        for word in self.arguments:
            for name, value in filled.items():
                word = word.replace(name, value)
            given.append(word)
        return [*given, *arguments, "--backend", backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How one run ended and what its ranks recorded."""

    label: str
    ended: bool
    codes: tuple[int | None, ...]
    records: tuple[RankRecord, ...]  # by rank; fewer than ranks where one left none
    left_over: tuple[str, ...]
    tail: str  # of the output of the first rank that failed, else of rank 0

    @property
    def problem(self) -> str:
        """Why it did not do its work; "" where it did."""
        if not self.ended:
            return f"{self.label}: not ended within its limit; killed"
        failed = [(rank, code) for rank, code in enumerate(self.codes) if code]
        if failed:
            rank, code = failed[0]
            said = next((each.error for each in self.records if each.error), self.tail[-300:])
            return f"{self.label}: rank {rank} ended with {code}: {' '.join(said.split())}"
        if len(self.records) < len(self.codes):
            return f"{self.label}: a rank left no record"
        return ""

    @property
    def losses(self) -> tuple[tuple[float, ...], ...]:
        """The losses of the steps, by rank; at most the first ten."""
        return tuple(
            tuple(step.loss for step in record.steps if step.loss is not None)
            for record in self.records
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """What was built on each rank for its first group, by rank."""
        return tuple(
            " ".join(sorted(set(record.groups[0].classes.values()))) if record.groups else "none"
            for record in self.records
        )


def run_job(
    stack: Stack,
    job: SavingJob,
    arguments: Sequence[str],
    *,
    label: str,
    folder: Path,
    limit_s: float,
    backend: str = "gloo",
    variables: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> JobRun:
    """Run ``job`` on two ranks; nothing of it is running afterwards.

    Args:
        stack: Where to run.
        job: The script and what it is always given.
        arguments: What it is given here, besides ``--backend``.
        label: For errors, such as "the old stack, resumed".
        folder: For records and output; emptied first.
        limit_s: Seconds until it counts as hung.
        backend: The spelling that it passes on.
        variables: More variables of a rank, such as a lever.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = stack.command(
        *("-m", "keepstep.probe", "--no-sweep", "--record", str(folder)),
        *(str(job.script.resolve()), *job.words(backend, folder, arguments)),
    )
    with Processes() as processes, contextlib.ExitStack() as files:
        port = free_port()
        for rank in range(RANKS):
            surroundings = rank_variables(
                stack, rank=rank, world_size=RANKS, port=port, on_gpu=needs_gpu(backend)
            )
            output = files.enter_context(open(folder / f"output-{rank}.txt", "wb"))
            processes.start(command, {**surroundings, **variables(rank)}, output, folder)
        ended = processes.wait(limit_s, _GRACE_S)
        left = processes.left_over() if ended else []
        codes = tuple(each.poll() for each in processes.started)
    return JobRun(
        label=label,
        ended=ended,
        codes=codes,
        records=tuple(_records(folder)),
        left_over=tuple(left),
        tail=_tail(folder, codes),
    )


def _records(folder: Path) -> list[RankRecord]:
    found = []
    for rank in range(RANKS):
        with contextlib.suppress(FileNotFoundError, ValidationError):
            data = (folder / f"rank-{rank}.json").read_bytes()
            found.append(RankRecord.model_validate_json(data))
    return found


def _tail(folder: Path, codes: Sequence[int | None]) -> str:
    rank = next((rank for rank, code in enumerate(codes) if code), 0)
    return (folder / f"output-{rank}.txt").read_bytes()[-2000:].decode(errors="replace")


def largest_difference(
    one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> float | None:
    """Return the largest relative difference of two runs' losses; None where they do not pair."""
    pairs = []
    if not one or len(one) != len(other):
        return None
    for left, right in zip(one, other, strict=True):
        if not left or len(left) != len(right):
            return None
        pairs += list(zip(left, right, strict=True))
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
