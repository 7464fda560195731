"""The table of rules as the documentation shows it: ``python -m keepstep.check.table``."""

from __future__ import annotations

from collections.abc import Iterator

from keepstep.check.rules import AREAS, RULES


def to_markdown() -> str:
    """Return all rules, by area."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for prefix, area in AREAS.items():
        yield from ("", f"### {area}", "", "| Code | At worst | What is found |", "|---|---|---|")
        for code, rule in RULES.items():
            if code.startswith(prefix):
                yield f"| {code} | {rule.severity} | {rule.title} |"


if __name__ == "__main__":
    print(to_markdown(), end="")
