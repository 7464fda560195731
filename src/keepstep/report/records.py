"""Which records a receipt of each kind holds, read back into what they were."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from keepstep.canary.facts import Facts
from keepstep.canary.record import RunRecord
from keepstep.canary.verdict import CellVerdict
from keepstep.drills.record import DrillRecord
from keepstep.receipt.statement import Kind
from keepstep.report.model import Rehearsal


class CellRecords(Facts):
    """What a cell's receipt holds."""

    runs: tuple[RunRecord, ...]
    verdict: CellVerdict


_RECORDS: dict[Kind, type[Facts]] = {
    Kind.CELL: CellRecords,
    Kind.DRILL: DrillRecord,
    Kind.REHEARSAL: Rehearsal,
}


def read_records(kind: Kind, records: dict[str, Any]) -> Facts:
    """Return a receipt's records: ``CellRecords``, ``DrillRecord`` or ``Rehearsal``.

    Raises:
        ValidationError: They are not as this version of keepstep writes them.
    """
    return _RECORDS[kind].model_validate(records)


def problem(kind: Kind, records: dict[str, Any]) -> str:
    """Say what is wrong with a receipt's records; "" when nothing is."""
    try:
        read_records(kind, records)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the records"
        return f"{field}: {first['msg']}"
    return ""
