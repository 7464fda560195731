"""What is not the same and should be: between the ranks of a cell, and between its runs."""

from __future__ import annotations

from collections.abc import Mapping

from keepstep.receipt.material import Material, differences
from keepstep.report.model import OpenDifference


def open_differences(by_cell: Mapping[str, Material]) -> tuple[OpenDifference, ...]:
    """Return where ranks of one cell say different things of what they run on."""
    found = []
    for cell, material in by_cell.items():
        for each in differences(material):
            values = {", ".join(who): value for value, who in each.values.items()}
            found.append(
                OpenDifference(
                    where=cell,
                    what=each.fact,
                    values=values,
                    note="ranks of one job are to run on the same thing",
                )
            )
    return tuple(found)
