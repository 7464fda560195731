"""What a backend's name means to each rank of a job, before anything is built."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.canary.processes import Processes
from keepstep.canary.torchrun import free_port
from keepstep.drills.surroundings import needs_gpu, rank_variables
from keepstep.stack.named import Stack

SCRIPT = Path(__file__).with_name("inside") / "resolved.py"
AGREED, DIFFER = 0, 1  # its exit codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolutions:
    """The answers of the ranks."""

    answers: tuple[Mapping[str, Any], ...]  # by rank; fewer where one left none
    codes: tuple[int | None, ...]
    tail: str  # of rank 0's output

    def values(self, name: str) -> list[Any]:
        """Return one fact of every rank."""
        return [answer.get(name) for answer in self.answers]

    @property
    def complete(self) -> bool:
        """Whether every rank answered."""
        return bool(self.codes) and len(self.answers) == len(self.codes)

    @property
    def differs(self) -> list[str]:
        """In what the ranks say that they differ."""
        return sorted({text for answer in self.answers for text in answer.get("differs", ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank runs: a lever on some ranks only is a difference between places."""

    stack: Stack
    backend: str  # the spelling that it passes on
    variables: Mapping[str, str] = field(default_factory=dict)


def resolve_on(places: Sequence[Place], *, folder: Path, limit_s: float) -> Resolutions:
    """Ask one rank for each of ``places`` what its spelling means; nothing runs afterwards.

    Args:
        places: Of the ranks.
        folder: For the answers; emptied first.
        limit_s: Seconds until everything is killed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shared = ("--folder", str(folder), "--limit", f"{limit_s:g}")
    with Processes() as processes, contextlib.ExitStack() as files:
        port = free_port()
        for rank, place in enumerate(places):
            surroundings = rank_variables(
                place.stack,
                rank=rank,
                world_size=len(places),
                port=port,
                on_gpu=needs_gpu(place.backend),
            )
            output = files.enter_context(open(folder / f"output-{rank}.txt", "wb"))
            command = place.stack.command(str(SCRIPT), "--backend", place.backend, *shared)
            processes.start(command, {**surroundings, **place.variables}, output, folder)
        processes.wait(limit_s, limit_s)
        codes = tuple(each.poll() for each in processes.started)
    answers = []
    for rank in range(len(places)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            answers.append(json.loads((folder / f"resolved-{rank}.json").read_text()))
    tail = (folder / "output-0.txt").read_bytes()[-500:].decode(errors="replace")
    return Resolutions(answers=tuple(answers), codes=codes, tail=tail)
