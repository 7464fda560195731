"""The order of all runs: rounds of neighbours, so that a drifting machine drifts for everybody.

Separate allocations, or all runs of one arm before those of the other, make a difference between
times look like one between stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.canary.cell import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run that is to be made."""

    cell: str
    pair: int
    order: int  # position among all


def schedule(cells: Sequence[Cell], pairs: int) -> tuple[Turn, ...]:
    """Return all runs in the order in which they are to be made.

    In each round every cell runs once. Cells with the same reference are neighbours, with the
    reference in their middle; the next round takes them in mirrored order (ABBA), and every second
    round the others change places. More pairs only add rounds at the end, so what has been run
    stays valid; after an interruption, leave out what is on disk.
    """
    groups: dict[str, list[str]] = {}
    for cell in cells:
        groups.setdefault(cell.against or cell.id, []).append(cell.id)
    turns = [
        (cell, pair)
        for pair in range(pairs)
        for reference, members in groups.items()
        for cell in _round(reference, [each for each in members if each != reference], pair)
    ]
    return tuple(
        Turn(cell=cell, pair=pair, order=order) for order, (cell, pair) in enumerate(turns)
    )


def _round(reference: str, others: list[str], pair: int) -> list[str]:
    shift = pair // 2 % len(others) if others else 0
    others = others[shift:] + others[:shift]
    half = len(others) // 2
    order = [*others[:half], reference, *others[half:]]
    return order if pair % 2 == 0 else order[::-1]
