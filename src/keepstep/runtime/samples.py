"""Proof that every sample was used exactly once: what workers note, and the sums at the end.

Each rank notes which positions of the sample stream it took in which step of which generation. The
notes travel inside its rank records (``vault``), so they survive the worker and, mirrored, its
host. A step counts in the generation that produced the state the job went on with: the last one
that starts at or before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Run = list[int]  # [generation, first step, last step, start, stop, samples of a step]
RUN_LENGTH = 6


@dataclass(slots=True)
class SampleNotes:
    """What one worker used, as runs.

    A run is a stretch of consecutive steps in which the rank's share moves by one global batch a
    step; a whole generation is one run.
    """

    runs: list[Run] = field(default_factory=list)

    def note(self, generation: int, step: int, positions: range, batch: int) -> None:
        """Note that ``positions`` of the stream are used in ``step`` of ``batch`` samples."""
        run = self.runs[-1] if self.runs else None
        if run is not None and _extends(run, generation, step, positions, batch):
            run[2] = step
        else:
            self.runs.append([generation, step, step, positions.start, positions.stop, batch])


def _extends(run: Run, generation: int, step: int, positions: range, batch: int) -> bool:
    shift = (step - run[1]) * batch
    expected = (run[0], run[2] + 1, run[3] + shift, run[4] + shift, run[5])
    return expected == (generation, step, positions.start, positions.stop, batch)


def merge(rows: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return rows [worker, number of the run, *run]: of each run the longest that anybody kept."""
    longest: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        key = (row[0], row[1])
        if key not in longest or row[4] > longest[key][4]:
            longest[key] = list(row)
    return list(longest.values())


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

    Args:
        rows: [worker, number of the run, *run], merged.
        generations: [number, start step, ...] in the order in which they were formed.
        steps: committed steps of the job; those before its first generation are of an earlier run.

    Step ``n`` must cover the positions ``[n * batch, (n + 1) * batch)``.
    """
    if not rows or not generations or steps == 0:
        return None
    batch = max(row[7] for row in rows)
    by_step = _shares_by_step(rows)
    lost = repeated = 0
    for step in range(generations[0][1], steps):
        chosen = effective_generation(generations, step)
        shares = [share for share in by_step.get(step, []) if share[2] == chosen]
        missing, double = _coverage(shares, step * batch, (step + 1) * batch)
        lost, repeated = lost + missing, repeated + double
    return lost, repeated


def _shares_by_step(rows: Sequence[Sequence[int]]) -> dict[int, list[tuple[int, int, int]]]:
    found: dict[int, list[tuple[int, int, int]]] = {}
    for _, _, generation, first, last, start, stop, batch in rows:
        for step in range(first, last + 1):
            shift = (step - first) * batch
            found.setdefault(step, []).append((start + shift, stop + shift, generation))
    return found


def _coverage(shares: Sequence[tuple[int, int, int]], begin: int, end: int) -> tuple[int, int]:
    """Return how many positions of [begin, end) are covered by no share, and by more than one."""
    missing = double = 0
    reached = begin
    for start, stop, _ in sorted(shares):
        missing += max(0, start - reached)
        double += max(0, min(reached, stop) - start)
        reached = max(reached, stop)
    return missing + max(0, end - reached), double
