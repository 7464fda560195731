"""Snapshots of one worker: when the next one is due, and what it leaves in the vault."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.link import AgentLink
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.replicas import payload_parts
from keepstep.runtime.snapshots import KEPT
from keepstep.runtime.state import State, digest_of


class SnapshotTaker:
    """Takes one every ``every`` steps; the coordinator says when that changes."""

    def __init__(
        self, wid: int, folder: Path, state: State, records: RankRecords, link: AgentLink
    ) -> None:
        """Take none until ``every`` is set, or ordered."""
        self._wid, self._vault = wid, folder
        self._state, self._records, self._link = state, records, link
        self.every = 0

    def after_commit(self, count: int, steps: int) -> None:
        """Take a snapshot of ``count`` steps if it is due; none at the end of all ``steps``."""
        order = self._link.snapshot_every
        if order is not None and count >= order.from_step:
            self.every = order.every
            self._link.snapshot_every = None
        if self.every and count % self.every == 0 and count < steps:
            self.take(count)

    def take(self, count: int) -> None:
        """Take a snapshot of ``count`` steps; where there is no room for one, go on without."""
        began = time.monotonic()
        encoded = self._state.encode_replicated()
        manifest = encoded.manifest()
        rank = dist.get_rank()
        # First and last rank keep the replicated state (two hosts where there are two); every rank
        # keeps its own record and says its digest.
        keeps = rank in (0, dist.get_world_size() - 1)
        try:
            own = f"snapshot/{count}/rank/{self._wid}"
            vault.write_blob(self._vault, own, [self._records.last])
            if keeps:
                parts = payload_parts(encoded, manifest)
                vault.write_blob(self._vault, f"snapshot/{count}/payload", parts)
        except OSError as error:
            why = error.strerror or str(error)
            self._link.send(
                p.SnapshotLeftOut(wid=self._wid, committed=count, folder=str(self._vault), why=why)
            )
            return
        if keeps:
            vault.drop_snapshots(self._vault, newest=count, kept=KEPT)
        self._link.send(
            p.SnapshotTaken(
                wid=self._wid,
                rank=rank,
                committed=count,
                digest=digest_of(manifest),
                payload=keeps,
                seconds=time.monotonic() - began,
            )
        )
