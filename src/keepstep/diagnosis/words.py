"""The sentences of a verdict, and the small pieces that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keepstep.recorder.model import Operation


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks folded into runs: ``0-3, 7``. A run of two stays two numbers."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    return ", ".join(parts)


def ranks(of: Iterable[int]) -> str:
    """Ranks as a person says them: ``rank 2``, ``ranks 0, 1 and 3``, ``ranks 0 to 7 and 9``."""
    known = sorted(of)
    if len(known) == 1:
        return f"rank {known[0]}"
    parts = rank_list(known).replace("-", " to ").split(", ")
    return "ranks " + join(parts)


def join(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def verb(of: Sequence[int], one: str, many: str) -> str:
    """The form of a verb that fits the number of ranks."""
    return one if len(of) == 1 else many


def tensors(operation: Operation) -> str:
    """Shapes and types of what an operation reads, or of what it writes where it reads nothing."""
    sizes = operation.input_sizes or operation.output_sizes
    dtypes = operation.input_dtypes or operation.output_dtypes
    shown = [f"[{', '.join(map(str, size))}]" for size in sizes[:3]]
    if len(sizes) > 3:
        shown.append(f"and {len(sizes) - 3} more")
    return " ".join([*shown, *dict.fromkeys(dtypes)])
