"""In which group a rank made a call more: its counts beside the programs of the others.

The ranks of a training job come to the same counts of calls in their groups, over and over. A rank
that is off this path in one group alone made calls too many there; one that is off it in all other
groups by as much did the same, seen from there. The nearest point of the path tells the two from
each other, and from a rank that left calls out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from keepstep.diagnosis.history import History
from keepstep.recorder.model import Direction, Entry

ASKED = 16  # other ranks whose programs are compared

Kind = tuple[str, int, Direction | None]
"""Description and size of a group, and the half of a transfer."""
Counts = dict[Kind, int]


def is_ahead(history: History, rank: int, group: int, sequence: int, others: Iterable[int]) -> bool:
    """Whether a rank came to a collective of ``group`` after calls that are too many there.

    Its counts of calls must differ from the nearest points in the programs of most others in this
    group alone, and be higher. A rank that left out a call elsewhere is nearer to another point.
    """
    mine = _counts_at(history, rank, group, sequence)
    kind = _kind(history, group)
    if mine is None or kind not in mine:
        return False
    asked = history.with_dump(other for other in others if other != rank)[:ASKED]
    ahead = sum(_nearest(history, other, mine) == (kind, True) for other in asked)
    return ahead * 2 > len(asked)


def _nearest(history: History, other: int, mine: Counts) -> tuple[Kind, bool] | None:
    """In which kind of group alone ``mine`` differs from the nearest point, and whether it is more.

    None if it differs nowhere or in several kinds, if equally near points say different things, and
    if the other one never went beyond ``mine``.
    """
    last = _last(_path(history, other))
    shared = mine.keys() & last.keys()
    if all(last[kind] <= mine[kind] for kind in shared):
        return None  # it is merely behind
    least = len(shared) + 1
    found: set[tuple[Kind, bool]] = set()
    for counts in _path(history, other):
        differing = [kind for kind in shared if counts.get(kind, 0) != mine[kind]]
        if len(differing) < least:
            least, found = len(differing), set()
        if len(differing) == least == 1:
            (kind,) = differing
            found.add((kind, mine[kind] > counts.get(kind, 0)))
    return found.pop() if len(found) == 1 and least == 1 else None


def _counts_at(history: History, rank: int, group: int, sequence: int) -> Counts | None:
    slots = history.frontier.roster.of.get(rank, {})
    for entry, counts in _walk(history, rank):
        here = not entry.is_p2p and slots[entry.pg_id, entry.group] == group
        if here and entry.sequence == sequence:
            return dict(counts)
    return None


def _path(history: History, rank: int) -> Iterator[Counts]:
    for _, counts in _walk(history, rank):
        yield counts


def _last(path: Iterator[Counts]) -> Counts:
    found: Counts = {}
    for counts in path:
        found = counts
    return found


def _walk(history: History, rank: int) -> Iterator[tuple[Entry, Counts]]:
    """Yield each entry with the counts after it. The counts are one object that changes.

    Left out are kinds of which the rank has several groups, and transfers where the ring buffer no
    longer holds them all: nobody knows their number.
    """
    slots = history.frontier.roster.of.get(rank, {})
    alike = Counter(_kind(history, index) for index in set(slots.values()))
    whole = history.frontier.standings[rank].whole
    counts: Counts = {}
    for entry in history.entries(rank):
        description, size, _ = kind = _kind(history, slots[entry.pg_id, entry.group])
        if alike[kind] == 1:
            if not entry.is_p2p:
                counts[kind] = max(entry.sequence, counts.get(kind, 0))
            elif whole:
                half = (description, size, entry.operation.direction)
                counts[half] = counts.get(half, 0) + 1
        yield entry, counts


def _kind(history: History, group: int) -> Kind:
    known = history.frontier.roster.groups[group]
    return known.description, len(known.members), None
