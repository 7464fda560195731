"""What happened to many cells alike is said once, with their number and their names."""

from __future__ import annotations

from typing import Any

from keepstep.canary.cell import Role
from keepstep.canary.verdict import GateResult, Verdict
from keepstep.report.html import as_html
from keepstep.report.model import Rehearsal
from keepstep.report.text import as_text
from tests.report.rehearsals import GATES, cell, judged, matrix, rehearsal, soft

WHY = "5 runs (pairs 0, 1, 2, 3, 4): rank 0 ended with exit code 1"
NEW = ["data_parallel/2.15/gloo", "sharded/2.15/gloo", "tensor/2.15/gloo", "pipeline/2.15/gloo"]


def crashed(**changes: Any) -> dict[str, Any]:
    gates = [
        GateResult(
            gate=gate,
            verdict=Verdict.FAIL if gate == "crash" else Verdict.INCONCLUSIVE,
            seen=WHY if gate == "crash" else "only 0 of 5 runs ended in a way that shows it",
            wanted=f"what {gate} wants",
        )
        for gate in GATES
    ]
    facts = {"verdict": Verdict.FAIL, "gates": gates, "soft": (), "reason": f"crash: {WHY}"}
    return facts | changes


def broken(**changes: Any) -> Rehearsal:
    """Every cell of the new stack crashed; one may have done it in another way."""
    cells = []
    for each in matrix():
        own = changes if each.id == NEW[0] else {}
        is_new = each.role is Role.CANDIDATE
        cells.append(judged(each, **crashed(**own)) if is_new else judged(each))
    return rehearsal(cells=tuple(cells))


def test_cells_that_crash_alike_are_one_entry() -> None:
    text, page = as_text(broken(), 1000), as_html(broken())
    assert text.count(f"crash: {WHY}") == 1
    assert f"4 cells alike, 20 runs ({', '.join(NEW)}): crash: {WHY}" in text
    assert "4 cells did not pass in one and the same way" in page
    assert page.count("rank 0 ended with exit code 1") == 2  # the reason, and the gate
    for name in NEW:
        anchor = f"cell-{name.replace('/', '-').replace('.', '-').replace('_', '-')}"
        assert page.count(f'id="{anchor}"') == 1
        assert f'href="#{anchor}"' in page


def test_gates_that_have_seen_the_same_are_one_line() -> None:
    line = ", ".join(gate for gate in GATES if gate != "crash")
    text = as_text(broken(), 1000)
    assert f"{line}: seen only 0 of 5 runs ended in a way that shows it" in text
    assert text.count("in a way that shows it") == 1
    assert as_html(broken()).count("in a way that shows it") == 1


def test_a_cell_that_crashed_in_another_way_is_told_alone() -> None:
    text = as_text(broken(reason="crash: rank 1 ended with signal 11"), 1000)
    assert f"{NEW[0]}: crash: rank 1 ended with signal 11" in text
    assert f"3 cells alike, 15 runs ({', '.join(NEW[1:])})" in text


def test_what_was_measured_is_told_of_each_cell() -> None:
    both = [cell(job, "2.15", Role.CANDIDATE) for job in ("sharded", "tensor")]
    slow = {"verdict": Verdict.FAIL, "soft": soft(1.13), "reason": "step time: slower"}
    text = as_text(rehearsal(cells=tuple(judged(each, **slow) for each in both)), 1000)
    assert "alike" not in text


def test_the_reference_of_each_is_its_own() -> None:
    both = [cell(job, "2.15", Role.CANDIDATE) for job in ("sharded", "tensor")]
    cells = tuple(
        judged(
            each,
            verdict=Verdict.INCONCLUSIVE,
            soft=(),
            reason=f"its reference {each.against} does not pass: crash: it died",
        )
        for each in both
    )
    text = as_text(rehearsal(cells=cells), 1000)
    assert "): its reference does not pass: crash: it died" in text
    alone = as_text(rehearsal(cells=cells[:1]), 1000)
    assert "its reference sharded/2.14/gloo does not pass" in alone
