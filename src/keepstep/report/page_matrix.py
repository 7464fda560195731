"""The matrix on the page: the grid, whether the judge can be believed, and what needs reading."""

from __future__ import annotations

from keepstep.canary.verdict import CellVerdict, GateResult, Verdict
from keepstep.report.alike import Alike, in_trouble, troubled_gates
from keepstep.report.figures import count_text, sentence_text
from keepstep.report.grid import Block, Grid, grids, role_text
from keepstep.report.markup import Child, Markup, joined, tag
from keepstep.report.model import CellResult, Rehearsal
from keepstep.report.numbers import numbers_line
from keepstep.report.page_measured import HOW_TO_READ, anchor, soft_table
from keepstep.report.page_table import section, soft_text, table, verdict_mark
from keepstep.report.signs import CLASS, MEANING
from keepstep.report.summary import verdict_of_cell


def matrix(rehearsal: Rehearsal) -> Markup:
    """Return all cells at a glance, and those that did not pass in full."""
    reading = in_trouble(rehearsal.cells)
    compared = any(each.found.soft for each in reading)
    return section(
        "matrix",
        "The matrix",
        soft_text(sentence_text(rehearsal.judgement.sentence)),
        [_grid(grid) for grid in grids(rehearsal)],
        _legend(),
        tag("p", numbers_line(rehearsal), class_="numbers"),
        _controls(rehearsal),
        soft_text(HOW_TO_READ) if compared else None,
        [_trouble(each) for each in reading],
    )


def _grid(grid: Grid) -> Markup:
    corner = tag("th", "Variant", scope="col", class_="corner")
    head = tag("tr", corner, [tag("th", job, scope="col") for job in grid.jobs])
    whole = tag(
        "table",
        tag("caption", tag("span", "Cells by variant and job", class_="unseen")),
        tag("thead", head),
        [_block(grid, block) for block in grid.blocks],
        class_="grid",
    )
    return tag("div", whole, class_="scroll", role="region", aria_label="Matrix", tabindex=0)


def _block(grid: Grid, block: Block) -> Markup:
    title = tag("th", block.topology, scope="rowgroup", colspan=len(grid.jobs) + 1)
    rows = [
        tag(
            "tr",
            tag("th", tag("b", row.label), " ", tag("span", row.role, class_="role"), scope="row"),
            [tag("td", _chip(cell)) for cell in row.cells],
        )
        for row in block.rows
    ]
    return tag("tbody", tag("tr", title, class_="topology"), rows)


def _chip(cell: CellResult | None) -> Markup:
    if cell is None:
        return tag("span", "not in the plan", class_="unseen")
    verdict = verdict_of_cell(cell)
    mark = verdict_mark(verdict, "interrupted" if cell.state == "interrupted" else None)
    return tag("a", mark, href=f"#{anchor(cell)}") if cell.verdict else mark


def _legend() -> Markup:
    entries = [
        tag("span", verdict_mark(verdict), f" {MEANING[verdict]}", class_="entry")
        for verdict in Verdict
    ]
    return tag("p", entries, class_="legend")


def _controls(rehearsal: Rehearsal) -> Markup | None:
    controls = rehearsal.judgement.controls
    if not controls:
        return soft_text("No control was judged: whether the judge can be believed is not known.")
    ran = [control for control in controls if control.verdict is not Verdict.NOT_RUN]
    rows = [
        (
            joined(control.name, tag("span", control.cell, class_="soft reason")),
            verdict_mark(control.verdict),
            control.reason,
        )
        for control in ran
    ]
    missing = len(controls) - len(ran)
    rest = soft_text(f"{count_text(missing, 'control')} more: not run.") if missing else None
    caption = "Controls: can the judge be believed on this machine, today?"
    heads = ["Control", "Verdict", "Why"]
    return joined(table(caption, heads, rows, kind="controls", titled=True), rest)


def _trouble(alike: Alike) -> Markup:
    """Return cells that did not pass, and all in one way, with the evidence."""
    found, first, *others = alike.found, *alike.cells
    title = (
        tag("span", alike.title, class_="path")
        if not others
        else f"{len(alike.cells)} cells did not pass in one and the same way"
    )
    return tag(
        "article",
        tag("h3", verdict_mark(found.verdict), " ", title),
        tag("p", sentence_text(alike.reason)),
        tag("ul", [_one_of(each) for each in alike.cells])
        if others
        else tag("p", _to_prove(first), class_="soft"),
        _gates(found),
        soft_table(found),
        tag("p", sentence_text(found.hang_bound), class_="soft") if found.hang_bound else None,
        None if others else _receipt(first),
        class_=f"card trouble {CLASS[found.verdict]}",
        id=None if others else anchor(first),
    )


def _one_of(cell: CellResult) -> Markup:
    """Return one of several cells that are told together."""
    runs = count_text(cell.verdict.runs, "run") if cell.verdict else "no run"
    receipt = f" Receipt: {cell.receipt}" if cell.receipt else ""
    return tag(
        "li",
        tag("span", cell.cell.id, class_="path"),
        f", {runs}. ",
        tag("span", f"{_to_prove(cell)}{receipt}", class_="soft"),
        id=anchor(cell),
    )


def _to_prove(cell: CellResult) -> str:
    against = f"; compared with {cell.cell.against}" if cell.cell.against else ""
    return f"{role_text(cell.cell.role).capitalize()}, to prove: {cell.cell.proves}{against}."


def _gates(found: CellVerdict) -> Child:
    """Return the gates that did not pass, then the names of those that did."""
    good = [gate.gate for gate in found.gates if gate.verdict is Verdict.PASS]
    heads = ["Gate", "Verdict", "Seen", "Wanted", "Next"]
    rows = [
        (names, verdict_mark(gate.verdict), gate.seen, _wanted(names, gate), gate.next)
        for names, gate in troubled_gates(found)
    ]
    passed = f"Gates passed: {', '.join(good)}." if good else "No gate passed."
    return joined(
        table("Gates that did not pass", heads, rows, titled=True) if rows else None,
        soft_text(passed),
    )


def _wanted(names: str, gate: GateResult) -> str:
    """Return what a gate wanted; several that have seen the same want each something else."""
    return "" if "," in names else gate.wanted


def _receipt(cell: CellResult) -> Markup | None:
    if not cell.receipt:
        return None
    return tag("p", "Receipt: ", tag("span", cell.receipt, class_="path"), class_="soft")
