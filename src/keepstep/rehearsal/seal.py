"""Signs what was seen: one receipt a cell, one a drill, and one over all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from keepstep.canary.cell import Cell
from keepstep.canary.record import RunRecord
from keepstep.canary.verdict import CellVerdict
from keepstep.drills.record import DrillRecord
from keepstep.receipt.keys import SigningKey
from keepstep.receipt.material import Material
from keepstep.receipt.sealed import seal
from keepstep.receipt.statement import Kind
from keepstep.rehearsal.folder import Folder
from keepstep.report.compared import WHOLE
from keepstep.report.model import ReceiptFile, Rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Signs into one folder."""

    folder: Folder
    key: SigningKey
    plan: Mapping[str, str]  # name of the plan's file to its SHA-256
    valid_days: int

    def cell(
        self,
        cell: Cell,
        runs: Sequence[RunRecord],
        verdict: CellVerdict,
        script: Path,
        found: Material,
    ) -> ReceiptFile:
        """Sign a cell: its runs and what the judge says of them. It counts from its last run."""
        records = {
            "runs": [run.model_dump(mode="json") for run in runs],
            "verdict": verdict.model_dump(mode="json"),
        }
        job = {script.name: hashlib.sha256(script.read_bytes()).hexdigest()}
        return self._write(cell.id, Kind.CELL, job, records, found, last_end(runs, ()))

    def drill(self, drill: DrillRecord, found: Material) -> ReceiptFile:
        """Sign a drill."""
        records, end = drill.model_dump(mode="json"), last_end((), [drill])
        return self._write(drill.name, Kind.DRILL, {}, records, found, end)

    def rehearsal(self, rehearsal: Rehearsal, found: Material, end: datetime | None) -> ReceiptFile:
        """Sign the whole, which names the digest of every other receipt."""
        records = rehearsal.model_dump(mode="json")
        return self._write(WHOLE, Kind.REHEARSAL, {}, records, found, end)

    def _write(
        self,
        name: str,
        kind: Kind,
        subject: Mapping[str, str],
        records: Mapping[str, object],
        found: Material,
        end: datetime | None,
    ) -> ReceiptFile:
        envelope = seal(
            kind,
            {**self.plan, **subject},
            records,
            key=self.key,
            material=found,
            valid_days=self.valid_days,
            now=end,
        )
        path = self.folder.write_receipt(name, envelope)
        return ReceiptFile(
            file=str(path.relative_to(self.folder.path)),
            sha256=hashlib.sha256(envelope).hexdigest(),
            about=name,
        )


def last_end(runs: Sequence[RunRecord], drills: Sequence[DrillRecord]) -> datetime | None:
    """Return when the last of these ended: what they prove is as old as that.

    Whoever asks for the report once more gets the same receipts again, not younger ones.
    """
    ends = [_end(each.started, each.seconds) for each in runs]
    ends += [_end(each.started, each.seconds) for each in drills]
    return max(ends, default=None)


def _end(started: str, seconds: float) -> datetime:
    return datetime.fromisoformat(started).astimezone(UTC) + timedelta(seconds=seconds)
