"""Cells that did not pass in one and the same way: a report says it once and lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keepstep.canary.verdict import CellVerdict, GateResult, Verdict
from keepstep.report.figures import count_text
from keepstep.report.model import CellResult
from keepstep.report.summary import verdict_of_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Cells with the same verdict for the same reason; mostly it is one."""

    cells: tuple[CellResult, ...]
    found: CellVerdict  # of the first: what is said of it holds for all
    reason: str

    @property
    def title(self) -> str:
        """Which cells these are, with the number of their runs where they are several."""
        if len(self.cells) == 1:
            return self.found.cell
        names = ", ".join(each.cell.id for each in self.cells)
        runs = count_text(sum(each.verdict.runs for each in self.cells if each.verdict), "run")
        return f"{len(self.cells)} cells alike, {runs} ({names})"


def in_trouble(cells: Iterable[CellResult]) -> tuple[Alike, ...]:
    """Return the judged cells that did not pass; what was measured is told of each cell alone."""
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    for each in cells:
        if each.verdict is not None and verdict_of_cell(each) is not Verdict.PASS:
            own = each.cell.id if each.verdict.soft else ""
            groups.setdefault((own, *_way(each, each.verdict)), []).append(each)
    return tuple(_alike(group) for group in groups.values())


def troubled_gates(found: CellVerdict) -> list[tuple[str, GateResult]]:
    """Return the gates that did not pass; those that have seen the same by their names together."""
    groups: dict[tuple[Verdict, str], list[GateResult]] = {}
    for gate in found.gates:
        if gate.verdict is not Verdict.PASS:
            groups.setdefault((gate.verdict, gate.seen), []).append(gate)
    return [(", ".join(gate.gate for gate in group), group[0]) for group in groups.values()]


def _alike(group: list[CellResult]) -> Alike:
    first = group[0].verdict
    assert first is not None, "only cells that were judged are in trouble"
    reason = first.reason if len(group) == 1 else _reason(group[0], first)
    return Alike(cells=tuple(group), found=first, reason=reason)


def _way(cell: CellResult, found: CellVerdict) -> tuple[object, ...]:
    gates = tuple((gate.gate, gate.verdict, gate.seen) for gate in found.gates)
    return verdict_of_cell(cell), _reason(cell, found), gates, found.runs, found.hang_bound


def _reason(cell: CellResult, found: CellVerdict) -> str:
    """Return the reason without the name of the cell's own reference."""
    return found.reason.replace(f"its reference {cell.cell.against} ", "its reference ")
