"""What a look at a job finds, and what it could not look at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from keepstep.exit_codes import ExitCode


class Severity(StrEnum):
    """What a finding means for the leap, worst first."""

    BREAKS = "breaks"  # the job fails, hangs, or cannot go back
    CHANGES = "changes"  # it runs, and does something else than before
    RISK = "risk"  # it goes wrong under a condition that cannot be seen here
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was seen."""

    code: str  # stable, such as KS101
    severity: Severity
    file: str  # "" where it is about the machine or the launch line
    line: int = 0
    column: int = 0
    text: str  # what was seen
    why: str  # what follows from it, with its source
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLooked:
    """Something that was not looked at."""

    what: str
    why: str
    matters: bool  # the answer could be another one if it had been
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one look brought."""

    findings: tuple[Finding, ...]  # worst first
    not_looked: tuple[NotLooked, ...]
    looked: tuple[str, ...]  # files that were read
    backends: tuple[str, ...] = ()  # that the groups were taken to have, and why

    @property
    def code(self) -> ExitCode:
        """Fail where something breaks; inconclusive where what matters was not looked at."""
        if any(finding.severity is Severity.BREAKS for finding in self.findings):
            return ExitCode.FAIL
        if any(each.matters for each in self.not_looked):
            return ExitCode.INCONCLUSIVE
        return ExitCode.PASS


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of their severity, code and place, each once."""
    order = list(Severity)
    unique = dict.fromkeys(findings)
    return tuple(
        sorted(
            unique,
            key=lambda each: (
                order.index(each.severity),
                each.code,
                each.file,
                each.line,
                each.column,
            ),
        )
    )
