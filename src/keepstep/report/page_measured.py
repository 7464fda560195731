"""What was measured: every cell with every metric, for those who want to see it."""

from __future__ import annotations

from keepstep.canary.verdict import CellVerdict, SoftResult, Verdict
from keepstep.report.figures import (
    count_text,
    margin_text,
    ratio_text,
    seconds_text,
    sentence_text,
    value_text,
)
from keepstep.report.markup import Child, Markup, joined, tag
from keepstep.report.model import CellResult, Rehearsal
from keepstep.report.page_table import section, soft_text, table, verdict_mark
from keepstep.report.strip import strip
from keepstep.report.summary import verdict_of_cell

_ASIDE = "informative"  # it decides nothing
HOW_TO_READ = (
    "Changes are means over neighbouring runs, this cell over its reference: above zero is worse, "
    "also of throughput. The two columns before are medians of all runs; where runs vary much, "
    "they need not agree. The bar is the interval; right of the dashed line is worse than the "
    "margin allows."
)
_SHORT = 11  # characters, that fit in a column of the table of metrics


def anchor(cell: CellResult) -> str:
    """Return the name by which the page links to a cell."""
    safe = "".join(c if c.isascii() and c.isalnum() else "-" for c in cell.cell.id)
    return f"cell-{safe}"


def measured(rehearsal: Rehearsal) -> Markup | None:
    """Return the measurements of the cells that passed; the others have theirs further up."""
    cells = [cell for cell in rehearsal.cells if verdict_of_cell(cell) is Verdict.PASS]
    if not cells:
        return None
    return section(
        "measured",
        "Measurements of the cells that passed",
        soft_text(HOW_TO_READ),
        [_cell(cell) for cell in cells],
    )


def soft_table(found: CellVerdict) -> Markup | None:
    """Return the metrics of a cell that were compared; None without any."""
    if not found.soft:
        return None
    picture = tag("span", "Picture", class_="unseen")
    heads: list[Child] = ["Metric", "Reference", "This cell", "Change", "Interval", "Margin"]
    heads += [picture, "Pairs", "Verdict"]
    # What the cell's own reason says already is not said twice.
    reasons = [
        tag("li", f"{soft.metric}: {soft.reason}")
        for soft in found.soft
        if soft.judged and soft.verdict is not Verdict.PASS and soft.reason not in found.reason
    ]
    return joined(
        table(f"Metrics of {found.cell}", heads, map(_row, found.soft), kind="metrics"),
        tag("ul", reasons) if reasons else None,
    )


def _cell(cell: CellResult) -> Markup:
    found = cell.verdict
    assert found is not None, "a cell that passed was judged"
    head = tag("h3", verdict_mark(found.verdict), " ", tag("span", cell.cell.id, class_="path"))
    facts = [
        count_text(found.runs, "run"),
        seconds_text(cell.seconds),
        f"gates passed: {', '.join(gate.gate for gate in found.gates)}" if found.gates else "",
        found.hang_bound,
        cell.receipt,
    ]
    return tag(
        "article",
        head,
        tag("p", sentence_text(found.reason)),
        soft_table(found),
        tag("p", " · ".join(filter(None, facts)), class_="soft"),
        class_="cell",
        id=anchor(cell),
    )


def _row(soft: SoftResult) -> tuple[Child, ...]:
    verdict = verdict_mark(soft.verdict) if soft.judged else tag("span", _ASIDE, class_="soft")
    return (
        soft.metric,
        _whole(value_text(soft.reference, soft.unit)),
        _whole(value_text(soft.candidate, soft.unit)),
        _whole(ratio_text(soft.ratio)),
        _bounds(soft),
        _whole(margin_text(soft.margin)) if soft.judged else None,
        strip(soft),
        _whole(_pairs(soft)),
        verdict,
    )


def _whole(text: str) -> Markup:
    """Return a number with its unit, not broken between the two unless that is too long."""
    return tag("span", text, class_="whole" if len(text) <= _SHORT else None)


def _bounds(soft: SoftResult) -> Markup:
    if soft.lower is None and soft.upper is None:
        return _whole("not known")
    low, high = (ratio_text(bound) if bound else "open" for bound in (soft.lower, soft.upper))
    return joined(_whole(low), " to ", _whole(high))


def _pairs(soft: SoftResult) -> str:
    return f"{soft.pairs} of {soft.pairs_wanted}" if soft.pairs_wanted else str(soft.pairs)
