"""From what the members hold to where the next generation starts. Pure functions.

The most advanced clean state wins. Whoever holds it exactly gives it to the others. If the clean
states of one step differ, or the per-rank state of a lost rank is not known for that step, nobody's
word is taken: all go back to the newest snapshot on which every rank agreed.

One member that got a step further than all others holds a state that nobody can compare. The step
is then repeated from the state before it: two that agree on that need no proof; where there is but
one, the repetition has to end in the state that the other one had (``Decision.proof``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Holding(Protocol):
    """What one surviving worker holds; its proposal says so."""

    @property
    def committed(self) -> int:
        """Steps committed."""

    @property
    def clean(self) -> bool:
        """Whether its state is exactly that of ``committed``."""

    @property
    def digest(self) -> str:
        """Of the replicated state; empty unless clean."""

    @property
    def entry(self) -> int:
        """Newest step count for which its per-rank state is known."""

    @property
    def member_of(self) -> int:
        """The newest generation that it was in."""

    @property
    def repeatable(self) -> bool:
        """Whether its steps give the same bits when they are done again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A common snapshot: which agents keep the replicated state, where each rank's record lies."""

    committed: int
    digest: str
    payload: tuple[str, ...]  # addresses of vaults
    ranks: Mapping[int, tuple[str, int]]  # rank -> (address of a vault, worker that wrote it)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSource:
    """Where the per-rank state of one rank comes from: a record of worker ``wid``."""

    wid: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the repetition of a step has to show: the state's digest after ``committed`` steps."""

    committed: int
    digest: str
    generation: int = 0  # the first one that repeats the step; 0: not known yet

    def agrees(self, held: Holding) -> bool:
        """Return whether ``held`` is the state that the repetition has to end in."""
        return (self.committed, self.digest) == (held.committed, held.digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Where the next generation starts."""

    source: str  # "live" or "snapshot"
    start_step: int
    digest: str
    donors: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    rank_sources: Mapping[int, RankSource] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    suspects: tuple[int, ...] = ()  # workers outvoted about the state they hold
    differ: bool = False  # states that should be equal are not
    proof: Proof | None = None
    why: str = ""


class NoCommonStateError(Exception):
    """Neither a live state nor a snapshot can be trusted: the job cannot go on."""


def decide(
    *,
    members: Sequence[int],
    owners: Mapping[int, int],
    holdings: Mapping[int, Holding],
    left: Mapping[int, int],
    snapshot: Snapshot | None,
    distrust: str = "",
    proof: Proof | None = None,
    same_world: bool = True,
) -> Decision:
    """Choose the start of a generation.

    Args:
        members: the worker of each rank of the new generation.
        owners: rank -> worker that had this place in the previous generation (absent: nobody).
        holdings: what each surviving worker holds; newcomers are absent.
        left: lost worker -> newest step count for which its per-rank state is known.
        snapshot: the newest common snapshot.
        distrust: why no live state may be used; empty: they may.
        proof: what a repetition that may not have been completed had to show.
        same_world: there are as many members as when the last step was done.

    Raises:
        NoCommonStateError: nothing to start from.
    """
    present = frozenset(members)
    clean = {wid: held for wid, held in holdings.items() if held.clean and wid in present}
    if distrust or not clean:
        return _from_snapshot(members, snapshot, distrust or "no rank holds a clean state")
    newest = max(held.committed for held in clean.values())
    winners = _holders(clean, newest)
    furthest = next(iter(winners.values()))
    difference = _difference(clean, furthest, proof)
    if difference is not None:
        suspects, why = difference
        return _from_snapshot(members, snapshot, why, suspects, differ=True)
    can_prove = same_world and all(held.repeatable for held in holdings.values())
    before = _holders(clean, newest - 1)
    # Who has not been there when the step was repeated only says again what it said before.
    is_proven = (
        proof is not None and furthest.member_of >= proof.generation and proof.agrees(furthest)
    )
    if len(winners) == 1 and not is_proven and (len(before) > 1 or (before and can_prove)):
        sources = _rank_sources(members, owners, holdings, before, left, newest - 1)
        if sources is not None:
            why = f"one rank alone had committed {newest} steps, and nobody could compare its state"
            wanted = Proof(committed=newest, digest=furthest.digest)
            return _live(members, before, sources, wanted if len(before) == 1 else None, why)
    sources = _rank_sources(members, owners, holdings, winners, left, newest)
    if sources is None:
        why = f"the per-rank state of a lost rank is not known for step {newest}"
        return _from_snapshot(members, snapshot, why)
    is_open = proof is not None and proof.committed == newest + 1 and can_prove
    return _live(members, winners, sources, proof if is_open else None)


def _difference(
    clean: Mapping[int, Holding], furthest: Holding, proof: Proof | None
) -> tuple[tuple[int, ...], str] | None:
    """Return who is outvoted, and why states that should be equal are not; None: they are."""
    for step in sorted({held.committed for held in clean.values()}, reverse=True):
        holders = _holders(clean, step)
        outvoted = outliers({wid: held.digest for wid, held in holders.items()})
        if outvoted is not None:
            return outvoted, f"{len(holders)} replicas of step {step} differ"
    if proof is None or furthest.committed < proof.committed:
        return None
    if furthest.committed > proof.committed:
        return (), f"step {proof.committed} was repeated and nobody could say how it ended"
    if not proof.agrees(furthest):
        return (), f"step {proof.committed} was repeated and ended in another state"
    return None


def _holders(clean: Mapping[int, Holding], step: int) -> dict[int, Holding]:
    return {wid: held for wid, held in clean.items() if held.committed == step}


def _live(
    members: Sequence[int],
    holders: Mapping[int, Holding],
    sources: Mapping[int, RankSource],
    proof: Proof | None,
    why: str = "",
) -> Decision:
    """Return the start from the state of ``holders``."""
    first = next(iter(holders.values()))
    return Decision(
        source="live",
        start_step=first.committed,
        digest=first.digest,
        donors=tuple(holders),
        receivers=tuple(wid for wid in members if wid not in holders),
        rank_sources=sources,
        proof=proof,
        why=why,
    )


def from_first(
    members: Sequence[int],
    digests: Mapping[int, str],
    owners: Mapping[int, int] | None = None,
    *,
    start: int = 0,
    starts: Mapping[int, int] | None = None,
) -> Decision:
    """Return the start of a job: all take the state of the first rank that holds it.

    Args:
        members: the worker of each rank.
        digests: worker -> digest of what it built or loaded.
        owners: rank -> worker that was to have the rank and left its initial per-rank state.
        start: the step count of the job's start; above 0 for one that goes on from a checkpoint.
        starts: worker -> step count of what it holds; absent: ``start``.

    Raises:
        NoCommonStateError: nobody holds a state of ``start``.
    """
    known = starts or {}
    holders = [wid for wid in members if known.get(wid, start) == start and digests[wid]]
    if not holders:
        raise NoCommonStateError(f"every process that had loaded the state of step {start} is gone")
    agreed = digests[holders[0]]
    same = tuple(wid for wid in members if digests[wid] == agreed)
    sources = {
        rank: RankSource(wid=owner, count=start)
        for rank, owner in (owners or {}).items()
        if owner != members[rank]
    }
    return Decision(
        source="live",
        start_step=start,
        digest=agreed,
        donors=same,
        receivers=tuple(wid for wid in members if wid not in same),
        rank_sources=sources,
    )


def outliers(digests: Mapping[int, str]) -> tuple[int, ...] | None:
    """Return None if all digests are equal, else the workers that a strict majority contradicts."""
    counts = Counter(digests.values())
    if len(counts) <= 1:
        return None
    digest, votes = counts.most_common(1)[0]
    if votes * 2 <= len(digests):
        return ()
    return tuple(wid for wid, value in digests.items() if value != digest)


def _rank_sources(
    members: Sequence[int],
    owners: Mapping[int, int],
    holdings: Mapping[int, Holding],
    winners: Mapping[int, Holding],
    left: Mapping[int, int],
    step: int,
) -> dict[int, RankSource] | None:
    """Return the records that members need; None if one of them is not known for ``step``."""
    sources: dict[int, RankSource] = {}
    for rank, wid in enumerate(members):
        owner = owners.get(rank)
        if wid in winners or owner is None:
            continue
        held = holdings.get(wid) if wid == owner else None
        known = held.entry if held is not None else left.get(owner, -1)
        if known < step:
            return None
        sources[rank] = RankSource(wid=owner, count=step)
    return sources


def _from_snapshot(
    members: Sequence[int],
    snapshot: Snapshot | None,
    why: str,
    suspects: tuple[int, ...] = (),
    *,
    differ: bool = False,
) -> Decision:
    if snapshot is None:
        raise NoCommonStateError(f"{why}, and there is no common snapshot")
    return Decision(
        source="snapshot",
        start_step=snapshot.committed,
        digest=snapshot.digest,
        receivers=tuple(members),
        snapshot=snapshot,
        suspects=suspects,
        differ=differ,
        why=why,
    )
