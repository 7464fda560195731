"""A verdict for programs (JSON) and for people (plain text)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from keepstep.diagnosis.verdict import Belief, Outcome, Verdict
from keepstep.incident.advice import facts
from keepstep.incident.gather import Arrival, Gathered
from keepstep.recorder.model import Finding

_WORDS = {
    Outcome.CULPRIT: "CULPRIT",
    Outcome.NO_RANK: "NO RANK IS TO BLAME",
    Outcome.HEALTHY: "HEALTHY",
    Outcome.SLOW: "SLOW, NOT HUNG",
    Outcome.UNKNOWN: "UNKNOWN",
}


def to_json(gathered: Gathered, verdict: Verdict) -> dict[str, Any]:
    """Return the machine form; ranks are numbers, sentences are text."""
    return {
        "attempt": gathered.attempt,
        "incident": _incident(gathered),
        "verdict": verdict.outcome.value,
        "ranks": list(verdict.ranks),
        "fault": verdict.fault.value,
        "faults": {str(rank): fault.value for rank, fault in verdict.faults},
        "confidence": verdict.confidence.value,
        "headline": verdict.headline,
        "evidence": list(verdict.evidence),
        "victims": [
            {
                "rank": victim.rank,
                "waits_for": list(victim.waits_for),
                "group": victim.group,
                "operation": victim.operation,
            }
            for victim in verdict.victims
        ],
        "would_decide": list(verdict.would_decide),
        "next_steps": list(verdict.next_steps),
        "beliefs": [
            {
                "rank": belief.rank,
                "group": belief.group,
                "last_completed": belief.last_completed,
                "pending": belief.pending,
                "call_site": belief.call_site,
            }
            for belief in verdict.beliefs
        ],
        "artifacts": [
            {"rank": each.rank, "kind": each.kind, "file": each.file, "reason": each.reason}
            for each in gathered.arrivals
        ],
        "findings": [
            {
                "code": each.code,
                "severity": each.severity.value,
                "path": each.path,
                "text": each.text,
            }
            for each in gathered.evidence.findings
        ],
    }


def _incident(gathered: Gathered) -> dict[str, Any] | None:
    """Return what the run itself knew; None where the dumps are not of an incident."""
    if not gathered.manifests:
        return None
    first = gathered.manifests[0]
    return {
        "name": first.incident,
        "written": first.written,
        "generation": first.generation,
        "step": first.step,
        "backend": first.backend,
        "outcome": first.outcome,
        "faults": list(first.faults),
        "members": [
            {"rank": each.rank, "worker": each.worker, "pid": each.pid, "host": each.host}
            for each in first.members
        ],
    }


def to_text(gathered: Gathered, verdict: Verdict) -> str:
    """Return the answer for a person: verdict, evidence, what each rank believed, what to do."""
    confidence = f" ({verdict.confidence} confidence)" if verdict.outcome is Outcome.CULPRIT else ""
    lines = [f"{_WORDS[verdict.outcome]}{confidence}: {printable(verdict.headline)}"]
    for manifest in gathered.manifests[:1]:
        lines += _section("incident", facts(manifest))
    lines += _section("evidence", verdict.evidence)
    lines += _section("this would decide", verdict.would_decide)
    lines += _section("next", verdict.next_steps)
    lines += _beliefs(verdict.beliefs)
    lines += _section("not there", _missing(gathered.arrivals))
    lines += _section("files", _files(gathered.evidence.findings))
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """Return one line that a terminal only shows: what came from a file cannot steer it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _section(title: str, sentences: Iterable[str]) -> list[str]:
    listed = [f"  - {printable(sentence)}" for sentence in sentences]
    return ["", f"{title}:", *listed] if listed else []


def _files(findings: Iterable[Finding]) -> list[str]:
    """Return what was found about files; files of which the same was found share a line."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        by_text[finding.text].append(finding.path)
    return [
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {text}"
        for text, paths in by_text.items()
    ]


def _missing(arrivals: Sequence[Arrival]) -> list[str]:
    by_reason: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in arrivals:
        if not each.file:
            by_reason[each.kind, each.reason].append(each.rank)
    return [
        f"{kind} of {ranks_text(ranks)}: {reason}" for (kind, reason), ranks in by_reason.items()
    ]


def _beliefs(beliefs: Sequence[Belief]) -> list[str]:
    """Return the table of what ranks believed; ranks with equal beliefs share a row."""
    rows: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for belief in beliefs:
        key = (belief.group, belief.last_completed, belief.pending or "-", belief.call_site)
        rows[key].append(belief.rank)
    if not rows:
        return []
    table = [("group", "ranks", "last completed", "waits in", "called at")]
    for (group, done, pending, site), ranks in rows.items():
        table.append((group, ranks_text(ranks, word=False), done or "-", pending, site))
    if not any(row[4] for row in table[1:]):
        table = [(*row[:4], "") for row in table]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    printed = ["  " + _aligned(row, widths) for row in table]
    return ["", "what each rank believed:", *printed]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells).rstrip()


def ranks_text(ranks: Iterable[int], *, word: bool = True) -> str:
    """Return ranks as runs: "ranks 0-11, 13"."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    if not word:
        return text
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"{'rank' if single else 'ranks'} {text}"
