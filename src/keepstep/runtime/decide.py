"""From what the members hold to where the next generation starts. Pure functions.

The most advanced clean state wins. Whoever holds it exactly gives it to the others. If the clean
states of one step differ, or the per-rank state of a lost rank is not known for that step, nobody's
word is taken: all go back to the newest snapshot on which every rank agreed.
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
    distrust: bool = False,
) -> Decision:
    """Choose the start of a generation.

    Args:
        members: the worker of each rank of the new generation.
        owners: rank -> worker that had this place in the previous generation (absent: nobody).
        holdings: what each surviving worker holds; newcomers are absent.
        left: lost worker -> newest step count for which its per-rank state is known.
        snapshot: the newest common snapshot.
        distrust: the live states were already found to differ.

    Raises:
        NoCommonStateError: nothing to start from.
    """
    present = frozenset(members)
    clean = {wid: held for wid, held in holdings.items() if held.clean and wid in present}
    if distrust or not clean:
        why = "replicas were found to differ" if distrust else "no rank holds a clean state"
        return _from_snapshot(members, snapshot, why)
    newest = max(held.committed for held in clean.values())
    winners = {wid: held for wid, held in clean.items() if held.committed == newest}
    outvoted = outliers({wid: held.digest for wid, held in winners.items()})
    if outvoted is not None:
        why = f"{len(winners)} replicas of step {newest} differ"
        return _from_snapshot(members, snapshot, why, suspects=outvoted)
    sources = _rank_sources(members, owners, holdings, winners, left, newest)
    if sources is None:
        why = f"the per-rank state of a lost rank is not known for step {newest}"
        return _from_snapshot(members, snapshot, why)
    return Decision(
        source="live",
        start_step=newest,
        digest=next(iter(winners.values())).digest,
        donors=tuple(winners),
        receivers=tuple(wid for wid in members if wid not in winners),
        rank_sources=sources,
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
        why=why,
    )
