"""The matrix as a grid: a row for each variant, a column for each job."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.canary.cell import Role
from keepstep.report.model import CellResult, Rehearsal

MOST_COLUMNS = 6  # that fit on a page in A4; more jobs go on in a grid below

_ROLES = {
    Role.REFERENCE: "reference",
    Role.SAME: "reference again",
    Role.CANDIDATE: "new default",
    Role.LEVER: "way back",
    Role.SEPARATOR: "whose change is it",
    Role.REFUSAL: "must be refused",
    Role.SLOWER: "control: slowed down",
    Role.FASTER: "control: sped up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant: what is the same but for the job."""

    label: str  # such as "2.15 nccl-legacy"
    role: str
    cells: tuple[CellResult | None, ...]  # by job; None: not in the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The rows of one topology."""

    topology: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Some of the jobs with all their variants."""

    jobs: tuple[str, ...]
    blocks: tuple[Block, ...]


def role_text(role: Role) -> str:
    """Return what a cell is for, in two or three words."""
    return _ROLES[role]


def grids(rehearsal: Rehearsal) -> tuple[Grid, ...]:
    """Return the matrix, in the order of the plan."""
    jobs = list(dict.fromkeys(each.cell.job for each in rehearsal.cells))
    return tuple(
        _grid(rehearsal.cells, tuple(jobs[at : at + MOST_COLUMNS]))
        for at in range(0, len(jobs), MOST_COLUMNS)
    )


def _grid(cells: tuple[CellResult, ...], jobs: tuple[str, ...]) -> Grid:
    found: dict[str, dict[tuple[str, str], dict[str, CellResult]]] = {}
    for each in cells:
        if each.cell.job in jobs:
            rows = found.setdefault(each.cell.topology, {})
            rows.setdefault(_variant(each), {})[each.cell.job] = each
    return Grid(
        jobs=jobs,
        blocks=tuple(
            Block(
                topology=topology,
                rows=tuple(
                    Row(label=label, role=role, cells=tuple(by_job.get(job) for job in jobs))
                    for (label, role), by_job in rows.items()
                ),
            )
            for topology, rows in found.items()
        ),
    )


def _variant(each: CellResult) -> tuple[str, str]:
    cell = each.cell
    variables = [f"{name}={value}" for name, value in sorted(cell.variables.items())]
    return " ".join([cell.stack, cell.backend, *variables]), role_text(cell.role)
