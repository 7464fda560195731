"""What a rank did before: its entries of one group, read again only where a question needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from keepstep.diagnosis.frontier import Frontier
from keepstep.diagnosis.stacks import user_frames
from keepstep.recorder.model import Entry, Frame, Operation

Signature = tuple[str, int | None, tuple[str, ...]]
"""Name, elements (None where ranks may differ) and types: equal ones can complete together."""

SITE_FRAMES = 8  # inner frames that make a call site: deeper ones repeat and cost memory


def signature(operation: Operation) -> Signature:
    """What must be equal on every rank of a collective.

    All-to-all, gather and scatter have sizes of their own on each rank; the list form of all-gather
    may have uneven inputs, and only its outputs are equal.
    """
    name = operation.name
    free = "to_all" in name or "toall" in name or "gatherv" in name
    free |= name.startswith(("gather", "scatter"))
    if free:
        return (name, None, operation.output_dtypes or operation.input_dtypes)
    sizes, dtypes = operation.input_sizes, operation.input_dtypes
    if name == "all_gather" or not sizes:  # nccl2 records a receive by its output alone
        sizes, dtypes = operation.output_sizes, operation.output_dtypes
    return (name, sum(prod(size) for size in sizes), dtypes)


@dataclass(frozen=True, slots=True)
class Token:
    """What was called and from where; tokens of two ranks agree if nothing contradicts."""

    what: Signature
    site: tuple[Frame, ...]

    def agrees(self, other: Token) -> bool:
        """Whether both can be the same call; a missing stack contradicts nothing."""
        sites = not self.site or not other.site or self.site == other.site
        return sites and self.what == other.what


def token(entry: Entry) -> Token:
    """Return what an entry called and from where."""
    return Token(signature(entry.operation), user_frames(entry.stack)[:SITE_FRAMES])


@dataclass(slots=True)
class History:
    """Entries of ranks by group and sequence, kept once they were asked for."""

    frontier: Frontier
    _known: dict[tuple[int, int], dict[int, Entry]] = field(default_factory=dict)

    def of(self, rank: int, group: int) -> dict[int, Entry]:
        """Return a rank's collectives in a group by sequence, as far as its buffer holds them."""
        key = (rank, group)
        if key not in self._known:
            found: dict[int, Entry] = {}
            if rank in self.frontier.dumps:
                slots = self.frontier.roster.of[rank]
                for entry in self.frontier.dumps[rank].entries:
                    if not entry.is_p2p and slots[entry.pg_id, entry.group] == group:
                        found.setdefault(entry.sequence, entry)
            self._known[key] = found
        return self._known[key]

    def entry(self, rank: int, group: int, sequence: int) -> Entry | None:
        """Return one collective of one rank, None if its buffer does not hold it."""
        return self.of(rank, group).get(sequence)

    def entries(self, rank: int) -> Sequence[Entry]:
        """Return all entries of a rank in the order of their records."""
        return self.frontier.dumps[rank].entries if rank in self.frontier.dumps else ()

    def with_dump(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks that left a dump, sorted."""
        return sorted(rank for rank in ranks if rank in self.frontier.dumps)
