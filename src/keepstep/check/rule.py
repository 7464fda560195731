"""A rule: what is looked for, why it matters and what mends it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from keepstep.check.finding import Finding, Severity
from keepstep.check.scene import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    code: str
    severity: Severity  # the worst that it says
    title: str
    why: str  # with its source: a link, or "measured" or "read" with the version
    mend: str

    def at(
        self,
        part: Part,
        node: ast.AST,
        text: str,
        *,
        severity: Severity | None = None,
        why: str = "",
        mend: str = "",
    ) -> Finding:
        """Return a finding at a node."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            file=part.file,
            line=getattr(node, "lineno", 0),
            column=getattr(node, "col_offset", -1) + 1,
            text=text,
            why=why or self.why,
            mend=mend or self.mend,
        )

    def here(
        self,
        text: str,
        *,
        severity: Severity | None = None,
        why: str = "",
        mend: str = "",
        file: str = "",
        line: int = 0,
        column: int = 0,
    ) -> Finding:
        """Return a finding that is not about a node of the code."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            file=file,
            line=line,
            column=column,
            text=text,
            why=why or self.why,
            mend=mend or self.mend,
        )
