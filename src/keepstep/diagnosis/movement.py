"""Two sets of dumps of one job: what moved in between is not hung."""

from __future__ import annotations

from collections.abc import Mapping

from keepstep.recorder.model import Dump, State


def moved_ranks(earlier: Mapping[int, Dump], later: Mapping[int, Dump]) -> tuple[int, ...]:
    """Return the ranks that began or finished anything between two dumps."""
    return tuple(
        rank
        for rank in sorted(set(earlier) & set(later))
        if _extent(earlier[rank]) != _extent(later[rank])
    )


def _extent(dump: Dump) -> tuple[int, int, tuple[tuple[int, int | None, int | None], ...]]:
    newest = dump.entries[-1].record if dump.entries else -1
    finished = sum(entry.state is State.COMPLETED or entry.retired for entry in dump.entries)
    counters = tuple(
        (number, status.enqueued, status.completed)
        for number, status in sorted(dump.status.items())
    )
    return newest, finished, counters
