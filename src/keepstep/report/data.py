"""A rehearsal for machines: the record, and what it comes to."""

from __future__ import annotations

import json

from keepstep.report.model import ReceiptFile, Rehearsal
from keepstep.report.numbers import numbers_line
from keepstep.report.steps import steps
from keepstep.report.summary import sentence, verdict_of


def as_json(rehearsal: Rehearsal, sealed: ReceiptFile | None = None) -> str:
    """Return one JSON object: verdict, sentence, numbers, next, receipt, and all records."""
    body = {
        "verdict": verdict_of(rehearsal).value,
        "sentence": sentence(rehearsal),
        "numbers": numbers_line(rehearsal),
        "next": [step.model_dump() for step in steps(rehearsal)],
        "receipt": sealed and sealed.model_dump(),
        "rehearsal": rehearsal.model_dump(mode="json"),
    }
    return json.dumps(body, indent=1, allow_nan=False)
