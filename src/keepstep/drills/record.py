"""What a drill leaves: what was to be proven, what was seen, and whether it is enough."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from keepstep.canary.facts import Facts
from keepstep.canary.verdict import Verdict


class Proof(Facts):
    """One thing that a drill had to show."""

    what: str  # such as "rank 1 was held before the collective"
    verdict: Verdict
    seen: str
    wanted: str
    evidence: str = ""  # file, relative to the drill's folder


class DrillRecord(Facts):
    """One drill on one stack and backend."""

    format: Literal[1] = 1
    drill: Literal["hang", "rollback", "restore", "replace"]
    name: str  # such as hang/2.15/gloo, unique in a rehearsal
    stack: str
    backend: str
    verdict: Verdict
    reason: str  # in one sentence
    proofs: tuple[Proof, ...]
    facts: dict[str, Any] = Field(
        default_factory=dict
    )  # what the report shows beside: table rows, debts, durations
    next: str = ""  # what to do about a fail or an inconclusive
    seconds: float
    started: str  # ISO 8601, UTC
    fingerprints: dict[str, Any] = Field(
        default_factory=dict
    )  # by stack, as the running processes said
