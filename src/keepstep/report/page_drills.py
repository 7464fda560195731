"""The drills on the page: each with what it had to show and what was seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keepstep.drills.record import DrillRecord
from keepstep.report.figures import seconds_text, sentence_text
from keepstep.report.markup import Child, Markup, joined, tag
from keepstep.report.model import Rehearsal
from keepstep.report.page_table import section, soft_text, table, verdict_mark
from keepstep.report.summary import WHOSE_JOBS

_MOST_ROWS = 16  # of a table of facts; the receipt has all
_LONGEST = 600  # characters of one value
_MOST_COLUMNS = 7  # that fit on a page in A4
_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
_DIGEST = re.compile(r"[0-9a-f]{40,}")  # the receipt has all of it


def drills(rehearsal: Rehearsal) -> Markup:
    """Return every drill, or that there was none."""
    if not rehearsal.drills:
        empty = soft_text("No drill was run: whether the way back works is not known.")
        return section("drills", "The drills", empty)
    receipts = {each.about: each.file for each in rehearsal.receipts}
    return section(
        "drills",
        "The drills",
        soft_text(WHOSE_JOBS),
        [_drill(each, receipts.get(each.name, "")) for each in rehearsal.drills],
    )


def _drill(record: DrillRecord, receipt: str) -> Markup:
    head = tag("h3", verdict_mark(record.verdict), " ", tag("span", record.name, class_="path"))
    heads = ["What had to be shown", "Verdict", "Seen", "Wanted", "Evidence"]
    rows = [
        (proof.what, verdict_mark(proof.verdict), proof.seen, proof.wanted, proof.evidence)
        for proof in record.proofs
    ]
    about = (f"stack {record.stack}", record.backend, seconds_text(record.seconds), receipt)
    return tag(
        "article",
        head,
        tag("p", sentence_text(record.reason)),
        tag("p", tag("b", "Next: "), record.next) if record.next else None,
        table(f"Proofs of {record.name}", heads, rows, kind="proofs")
        if rows
        else soft_text("It left no proof."),
        _facts(record.facts),
        tag("p", " · ".join(filter(None, about)), class_="soft"),
        class_="card drill",
    )


def _facts(facts: Mapping[str, Any]) -> Child:
    """Return what a drill noted beside its proofs: single values as a list, rows as tables."""
    single = {
        name: value for name, value in facts.items() if not _is_rows(value) and value not in _EMPTY
    }
    pairs = [
        (tag("dt", _words(name)), tag("dd", _shortened(plain(value))))
        for name, value in single.items()
    ]
    tables = [_rows(_words(name), value) for name, value in facts.items() if _is_rows(value)]
    return joined(tag("dl", pairs) if pairs else None, tables)


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) and item for item in value)
    )


def _rows(caption: str, rows: Any) -> Markup:
    names = dict.fromkeys(name for row in rows for name in row)
    heads = [name for name in names if any(row.get(name) not in _EMPTY for row in rows)]
    shown = rows[:_MOST_ROWS]
    if len(heads) > _MOST_COLUMNS:
        found = joined(tag("h4", caption), tag("ul", [_as_line(row) for row in shown]))
    else:
        body = [[plain(row.get(head)) for head in heads] for row in shown]
        words = [_words(head) for head in heads]
        found = table(caption, words, body, kind="facts", titled=True)
    if len(rows) > _MOST_ROWS:
        return joined(found, soft_text(f"and {len(rows) - _MOST_ROWS} more: see the receipt"))
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (the receipt has all of it)"


def _as_line(row: Mapping[str, Any]) -> Markup:
    """Return a row with too many values for a table, as one line of those that it has."""
    parts = [(_words(name), plain(value)) for name, value in row.items() if value not in _EMPTY]
    line = [
        (" · ", tag("span", name, class_="soft"), " ", _shortened(value))
        for name, value in parts[1:]
    ]
    return tag("li", [tag("b", " ".join(part)) for part in parts[:1]], line)


def _words(name: Any) -> str:
    return str(name).replace("_", " ")


def plain(value: Any) -> str:
    """Return a value of JSON as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        parts = ((name, item) for name, item in value.items() if item not in _EMPTY)
        return "; ".join(f"{_words(name)}: {plain(item)}" for name, item in parts)
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    text = str(value)
    return f"{text[:12]}…" if _DIGEST.fullmatch(text) else text
