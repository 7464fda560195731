"""Which snapshots exist, on which every rank agreed, and how often one is worth its cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from keepstep.runtime.decide import Snapshot, outliers
from keepstep.runtime.protocol import SnapshotTaken

FIRST_INTERVAL = 10  # steps, before the cost is known
BUDGET = 0.001  # share of the step time that snapshots may cost
TOO_OFTEN, TOO_SELDOM = 1.2, 0.5  # what is wanted over what is: beyond these it is changed
KEPT = 3  # snapshots that stay in a vault


@dataclass(slots=True)
class _Entry:
    digests: dict[int, str] = field(default_factory=dict)  # worker -> digest
    payload: list[str] = field(default_factory=list)
    ranks: dict[int, tuple[str, int]] = field(default_factory=dict)
    agreed: bool = False
    row: list[Any] | None = None  # what the journal holds, until it changes


@dataclass(slots=True)
class SnapshotRegistry:
    """Snapshots by the number of committed steps."""

    interval: int = FIRST_INTERVAL  # 0: no more are taken
    _entries: dict[int, _Entry] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)

    def note(self, taken: SnapshotTaken, address: str) -> None:
        """Note that one rank took its part; ``address`` is the vault it lies in."""
        entry = self._entries.setdefault(taken.committed, _Entry())
        entry.row = None
        entry.digests[taken.wid] = taken.digest
        entry.ranks[taken.rank] = (address, taken.wid)
        if taken.payload and address not in entry.payload:
            entry.payload.append(address)
        self._seconds.append(taken.seconds)
        del self._seconds[:-16]

    def judge(self, committed: int, members: Collection[int]) -> tuple[int, ...] | None:
        """Compare a snapshot once all ``members`` took it.

        Returns None as long as some have not, or if all agree (it is a common snapshot then); else
        the workers that a strict majority contradicts, () without such a majority.
        """
        entry = self._entries[committed]
        if len(entry.digests) < len(members):
            return None
        present = members if isinstance(members, Mapping) else frozenset(members)
        digests = {wid: digest for wid, digest in entry.digests.items() if wid in present}
        if len(digests) < len(members):
            return None
        outvoted = outliers(digests)
        if outvoted is None:
            entry.agreed, entry.row = bool(entry.payload), None
            self._drop_old(committed)
        return outvoted

    def _drop_old(self, committed: int) -> None:
        for old in [count for count in self._entries if count < committed]:
            newer = [c for c, entry in self._entries.items() if c > old and entry.agreed]
            if len(newer) >= KEPT:
                del self._entries[old]

    def is_common(self, committed: int) -> bool:
        """Return whether this snapshot can be gone back to."""
        return committed in self._entries and self._entries[committed].agreed

    def newest(self) -> Snapshot | None:
        """Return the newest snapshot on which every rank agreed."""
        agreed = [committed for committed, entry in self._entries.items() if entry.agreed]
        if not agreed:
            return None
        committed = max(agreed)
        entry = self._entries[committed]
        return Snapshot(
            committed=committed,
            digest=next(iter(entry.digests.values())),
            payload=tuple(entry.payload),
            ranks=dict(entry.ranks),
        )

    def drop_after(self, committed: int) -> None:
        """Forget snapshots of steps that are about to be repeated."""
        for newer in [count for count in self._entries if count > committed]:
            del self._entries[newer]

    def forget(self, committed: int) -> None:
        """Forget one that cannot be read; an older one may serve."""
        self._entries.pop(committed, None)

    def rehome(self, lost: str, mirror: str | None) -> None:
        """The vault ``lost`` is gone; the one at ``mirror`` keeps copies of its rank records."""
        for entry in self._entries.values():
            entry.row = None
            entry.payload = [address for address in entry.payload if address != lost]
            entry.ranks = {
                rank: (mirror or "", wid) if address == lost else (address, wid)
                for rank, (address, wid) in entry.ranks.items()
            }
            if not entry.payload or any(not address for address, _ in entry.ranks.values()):
                entry.agreed = False

    def stop(self) -> None:
        """Take no more; those that are there stay."""
        self.interval = 0

    def every(self, median_step: float) -> int | None:
        """Return a new interval in steps when the measured cost asks for one, else None."""
        if not self.interval or median_step <= 0 or len(self._seconds) < 4:
            return None
        # All wait for those that also keep the replicated state, so the dearer ones count.
        cost = sorted(self._seconds)[len(self._seconds) * 3 // 4]
        wanted = max(FIRST_INTERVAL, math.ceil(cost / (BUDGET * median_step)))
        if TOO_SELDOM <= wanted / self.interval <= TOO_OFTEN:
            return None
        self.interval = wanted
        return wanted

    def to_rows(self) -> dict[str, list[Any]]:
        """Return the snapshots that can be gone back to as JSON values, by count.

        Those that not all ranks have reported are left out: agents repeat to the next coordinator
        what their workers said of the newest ones.
        """
        return {str(count): _row(count, e) for count, e in self._entries.items() if e.agreed}

    @classmethod
    def from_rows(cls, rows: dict[str, list[Any]], interval: int) -> SnapshotRegistry:
        """Undo ``to_rows``."""
        found = cls(interval=interval)
        for count, digest, payload, places in rows.values():
            ranks = {
                rank: (address, wid)
                for address, there in places.items()
                for rank, wid in zip(there[::2], there[1::2], strict=True)
            }
            digests = dict.fromkeys((wid for _, wid in ranks.values()), digest)
            found._entries[count] = _Entry(digests, payload, ranks, True)
        return found


def _row(count: int, entry: _Entry) -> list[Any]:
    if entry.row is None:
        places: dict[str, list[int]] = {}
        for rank, (address, wid) in entry.ranks.items():
            places.setdefault(address, []).extend((rank, wid))
        digest = next(iter(entry.digests.values()))
        entry.row = [count, digest, list(entry.payload), places]
    return entry.row
