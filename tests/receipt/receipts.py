"""Receipts for tests, with keys that lie nowhere."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from keepstep.canary.cell import Role
from keepstep.canary.record import Outcome, RankRecord, RunRecord, Step
from keepstep.canary.verdict import CellVerdict, GateResult, Verdict
from keepstep.receipt.keys import PublicKey, SigningKey, new_key
from keepstep.receipt.material import Material
from keepstep.receipt.sealed import seal

KEY = new_key()
OTHER = new_key()
TRUSTED: dict[str, PublicKey] = {KEY.id: KEY.public}
NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
JOB = "0" * 63 + "1"
NEW: Material = {
    "new": {
        "rank 0": {"torch": "2.15.0+cu132", "cuda": "13.2", "driver": "580.1"},
        "rank 1": {"torch": "2.15.0+cu132", "cuda": "13.2", "driver": "580.1"},
    }
}


def rank(number: int, seconds: float = 0.02) -> RankRecord:
    """What a probe saw in one rank."""
    return RankRecord(
        rank=number,
        local_rank=number,
        world_size=2,
        host="node-a",
        pid=100 + number,
        end="complete",
        exit_code=0,
        steps=tuple(Step(seconds=seconds, loss=1.5) for _ in range(3)),
        seed=(1 << 63) + 5,
    )


def cell_records(seconds: float = 0.02, verdict: Verdict = Verdict.PASS) -> dict[str, Any]:
    """What the receipt of a cell holds."""
    run = RunRecord(
        cell="dp/new/gloo",
        pair=0,
        order=1,
        started="2026-11-30T08:59:00Z",
        seconds=4.2,
        outcome=Outcome.COMPLETE,
        exit_code=0,
        ranks=(rank(0, seconds), rank(1, seconds)),
    )
    gate = GateResult(gate="crash", verdict=verdict, seen="exit code 0", wanted="exit code 0")
    judged = CellVerdict(
        cell="dp/new/gloo",
        role=Role.CANDIDATE,
        verdict=verdict,
        runs=1,
        gates=(gate,),
        reason="as good as the reference",
    )
    return {"runs": [run.model_dump(mode="json")], "verdict": judged.model_dump(mode="json")}


def sealed(
    records: dict[str, Any] | None = None,
    *,
    kind: str = "cell",
    key: SigningKey = KEY,
    material: Material = NEW,
    now: datetime = NOW,
    valid_days: float = 30,
) -> bytes:
    """A receipt."""
    return seal(
        kind,
        {"data_parallel.py": JOB},
        cell_records() if records is None else records,
        key=key,
        material=material,
        valid_days=valid_days,
        host="node-a",
        now=now,
    )


def small() -> bytes:
    """A receipt with little in it, for tests that try every byte."""
    return sealed({"a": 1.5}, material={"new": {"rank 0": {"torch": "2.15"}}})


def enveloped(payload: bytes, key: SigningKey = KEY) -> bytes:
    """An envelope around any payload, signed as it should be."""
    from keepstep.receipt.envelope import wrap

    return wrap(payload, key)


def parts(data: bytes) -> dict[str, Any]:
    """The envelope of a receipt."""
    found: dict[str, Any] = json.loads(data)
    return found


def payload(data: bytes) -> bytes:
    """What is signed in a receipt."""
    return base64.b64decode(parts(data)["payload"])


def as_file(envelope: dict[str, Any]) -> bytes:
    """An envelope, written as receipts are."""
    return json.dumps(envelope, separators=(",", ":"), sort_keys=True).encode() + b"\n"
