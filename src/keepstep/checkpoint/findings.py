"""What a check of a checkpoint finds, and how much it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Weight(StrEnum):
    """How much a finding means."""

    DAMAGE = "damage"  # what was saved is not there, or not what would be loaded
    SUSPECT = "suspect"  # a sign of damage that may have another cause
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with one file."""

    weight: Weight
    code: str
    file: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked, and what was found."""

    findings: tuple[Finding, ...]
    checked: int = 0  # slices whose CRCs are right
    unchecked: int = 0  # slices that carry no CRC, or went through an extension
    bytes: int = 0  # that were read for the CRCs
    why_unchecked: str = (
        "without a CRC (switched off when it was written, or changed by an extension)"
    )
    recovery: str = ""  # the command that mends it, where there is one

    def worst(self) -> Weight | None:
        """Return the heaviest weight among the findings."""
        return next((w for w in Weight if any(f.weight is w for f in self.findings)), None)


def heaviest_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of their weight."""
    return tuple(sorted(findings, key=lambda finding: list(Weight).index(finding.weight)))
