"""What a receipt is bound to: the facts that decide whether two runs ran on the same thing.

Facts are flat, name to value, as ``keepstep.stack.material`` gives them for one process. A receipt
keeps them by stack and, within a stack, by process: ``{"new": {"rank 0": {"torch": "2.15.0"}}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Facts = dict[str, str]
Material = dict[str, dict[str, Facts]]

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that is not the same everywhere."""

    stack: str
    fact: str
    values: dict[str, tuple[str, ...]]  # value to the processes that have it, most first


def by_rank(stack: str, runs: Iterable[Mapping[int, Facts]]) -> Material:
    """Return the material of a cell: what its ranks said in all of its runs.

    A rank that says the same in every run is there once. One that says something else in a later
    run is there again, as ``rank 0 of run 3``: the ground moved under the cell.

    Args:
        stack: The name of the stack that all of them ran on.
        runs: For each run in order, the flat facts of each rank.
    """
    found: dict[str, Facts] = {}
    for number, ranks in enumerate(runs):
        for rank, facts in sorted(ranks.items()):
            first = found.setdefault(f"rank {rank}", dict(facts))
            if first != facts:
                found[f"rank {rank} of run {number}"] = dict(facts)
    return {stack: found} if found else {}


def differences(material: Material) -> tuple[Difference, ...]:
    """Return where processes of one stack disagree. This is the first thing to print."""
    found = []
    for stack, processes in material.items():
        for fact in sorted({fact for facts in processes.values() for fact in facts}):
            values: dict[str, list[str]] = {}
            for process, facts in processes.items():
                values.setdefault(facts.get(fact, ABSENT), []).append(process)
            if len(values) > 1:
                ordered = sorted(values.items(), key=lambda pair: -len(pair[1]))
                folded = {value: tuple(names) for value, names in ordered}
                found.append(Difference(stack=stack, fact=fact, values=folded))
    return tuple(found)
