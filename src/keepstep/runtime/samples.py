"""Proof that every sample was used exactly once: what workers note, and the sums at the end.

Each time a rank takes its share of a step, it appends one record (generation, step, first
position, end position) to a file in the vault; the file survives the worker. A step counts in the
generation that produced the state the job went on with: the last one that starts at or before it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

_RECORD = struct.Struct("<qqqq")


class SampleLog:
    """The worker's side: one system call a step."""

    def __init__(self, vault: Path, wid: int) -> None:
        """Open the log of worker ``wid``."""
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._file = os.open(vault / f"samples-{wid}", flags, 0o600)

    def note(self, generation: int, step: int, positions: range) -> None:
        """Note that these positions of the sample stream are used in ``step``."""
        os.write(self._file, _RECORD.pack(generation, step, positions.start, positions.stop))


def read_rows(vault: Path) -> list[list[int]]:
    """Return all logs of a vault as runs: [generation, first step, last step, start, stop, stride].

    A run is a stretch of consecutive steps of one worker in which start and stop move by
    ``stride`` positions a step.
    """
    rows: list[list[int]] = []
    for path in sorted(vault.glob("samples-*")):
        raw = path.read_bytes()
        whole = len(raw) - len(raw) % _RECORD.size
        rows += _to_runs(_RECORD.iter_unpack(raw[:whole]))
    return rows


def _to_runs(records: Iterable[tuple[int, ...]]) -> list[list[int]]:
    runs: list[list[int]] = []
    for generation, step, start, stop in records:
        if runs and _extends(runs[-1], generation, step, start, stop):
            run = runs[-1]
            run[5] = run[5] or start - run[3]
            run[2] = step
        else:
            runs.append([generation, step, step, start, stop, 0])
    return runs


def _extends(run: list[int], generation: int, step: int, start: int, stop: int) -> bool:
    if run[0] != generation or step != run[2] + 1 or stop - start != run[4] - run[3]:
        return False
    return run[5] == 0 or start == run[3] + (step - run[1]) * run[5]


def effective_generation(generations: Sequence[Sequence[int]], step: int) -> int:
    """Return the generation whose work on ``step`` is in the final state.

    Args:
        generations: [number, start step, ...] in the order in which they were formed.
        step: the step.
    """
    return max(entry[0] for entry in generations if entry[1] <= step)


def count_lost_and_repeated(
    rows: Sequence[Sequence[int]], generations: Sequence[Sequence[int]], steps: int
) -> tuple[int, int] | None:
    """Return (samples lost, samples repeated) over ``steps`` steps; None if no sampler was used.

    The batch size is what the sampler's positions say: step ``n`` must cover
    ``[n * batch, (n + 1) * batch)``.
    """
    if not rows or not generations:
        return None
    by_step = _shares_by_step(rows)
    batch = max(stop for shares in by_step.values() for _, stop, step, _ in shares if step == 0)
    lost = repeated = 0
    for step in range(steps):
        chosen = effective_generation(generations, step)
        shares = [share for share in by_step.get(step, []) if share[3] == chosen]
        missing, double = _coverage(shares, step * batch, (step + 1) * batch)
        lost, repeated = lost + missing, repeated + double
    return lost, repeated


def _shares_by_step(rows: Sequence[Sequence[int]]) -> dict[int, list[tuple[int, int, int, int]]]:
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for generation, first, last, start, stop, stride in rows:
        for step in range(first, last + 1):
            shift = (step - first) * stride
            share = (start + shift, stop + shift, step, generation)
            found.setdefault(step, []).append(share)
    return found


def _coverage(shares: Sequence[tuple[int, int, int, int]], begin: int, end: int) -> tuple[int, int]:
    """Return how many positions of [begin, end) are covered by no share, and by more than one."""
    missing = double = 0
    reached = begin
    for start, stop, _, _ in sorted(shares):
        missing += max(0, start - reached)
        double += max(0, min(reached, stop) - start)
        reached = max(reached, stop)
    return missing + max(0, end - reached), double
