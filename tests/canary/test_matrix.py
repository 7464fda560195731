"""Cells of the default plan, and the order of their runs."""

from __future__ import annotations

from collections import Counter

import pytest

from keepstep.canary.cell import Cell, Role
from keepstep.canary.matrix import Machine, arguments, cells, runnable, wanted_class
from keepstep.canary.plan import default_plan
from keepstep.canary.schedule import schedule

PLAN = default_plan()
CELLS = {cell.id: cell for cell in cells(PLAN)}


def on_a_cpu() -> list[Cell]:
    return [cell for cell in CELLS.values() if not runnable(cell, Machine())]


def test_a_cpu_runs_twelve_cells_and_the_two_planted_controls() -> None:
    roles = Counter(cell.role for cell in on_a_cpu())
    assert roles == {
        Role.REFERENCE: 4,
        Role.SAME: 4,
        Role.CANDIDATE: 4,
        Role.SLOWER: 1,
        Role.FASTER: 1,
    }
    assert {cell.stack for cell in on_a_cpu() if cell.role is Role.CANDIDATE} == {"2.15"}


def test_what_a_cpu_cannot_run_says_what_it_lacks_and_what_stays_open() -> None:
    others = [cell for cell in CELLS.values() if cell not in on_a_cpu()]
    assert {cell.role for cell in others} == set(Role)
    assert all(cell.proves for cell in others)
    assert {runnable(cell, Machine()) for cell in others} == {
        "it needs 2 GPUs, and here is none",
        "it needs 2 nodes, and this is 1",
    }
    assert not any(runnable(cell, Machine(gpus=4, nodes=2)) for cell in others)


@pytest.mark.parametrize(
    ("cell", "built"),
    {
        "pipeline/2.14/nccl": "ProcessGroupNCCL",
        "pipeline/2.15/nccl": "ProcessGroupNCCL2",
        "pipeline/2.15/nccl+TORCH_DIST_USE_NCCL2=0": "ProcessGroupNCCL",
        "pipeline/2.15/nccl-legacy": "ProcessGroupNCCL",
        "pipeline/2.15/nccl-lazy": "ProcessGroupNCCLLazy",
        "pipeline/2.14/nccl2": "ProcessGroupNCCL2",
        "data_parallel/2.15/nccl/unbound": "ProcessGroupNCCL2",
        "data_parallel/2.15/nccl/2-nodes": "ProcessGroupNCCL2",
        "many_devices/2.15/nccl": "ProcessGroupNCCL2",
    }.items(),
)
def test_each_spelling_has_a_cell_and_a_class(cell: str, built: str) -> None:
    assert wanted_class(PLAN, CELLS[cell]) == built


def test_every_cell_is_compared_with_a_reference_of_the_same_size() -> None:
    for cell in CELLS.values():
        if cell.against:
            assert CELLS[cell.against].role is Role.REFERENCE
            assert CELLS[cell.against].job == cell.job
            assert CELLS[cell.against].world_size == cell.world_size
        else:
            assert cell.role in (Role.REFERENCE, Role.REFUSAL)


def test_arguments_are_filled_in() -> None:
    assert arguments(PLAN, CELLS["tensor/2.15/nccl/bound-late"]) == (
        ["--steps", "20", "--seed", "7", "--backend", "nccl", "--device-id", "late"]
    )


def test_every_cell_runs_once_in_every_round() -> None:
    turns = schedule(on_a_cpu(), 5)
    assert [turn.order for turn in turns] == list(range(14 * 5))
    assert Counter((turn.cell, turn.pair) for turn in turns).most_common(1)[0][1] == 1


def test_the_runs_of_a_pair_are_neighbours() -> None:
    turns = schedule(on_a_cpu(), 5)
    at = {(turn.cell, turn.pair): turn.order for turn in turns}
    for cell in on_a_cpu():
        distances = [abs(at[cell.id, pair] - at[cell.against or cell.id, pair]) for pair in (0, 1)]
        assert max(distances) <= 2


def test_before_and_after_are_balanced() -> None:
    at = {(turn.cell, turn.pair): turn.order for turn in schedule(on_a_cpu(), 4)}
    for cell in on_a_cpu():
        if cell.against:
            after = [at[cell.id, pair] - at[cell.against, pair] for pair in range(4)]
            assert after[0] == -after[1]
            assert after[2] == -after[3]


def test_more_pairs_only_add_rounds() -> None:
    assert schedule(on_a_cpu(), 7)[: 14 * 5] == schedule(on_a_cpu(), 5)


def test_the_shift_brings_each_comparison_next_to_its_reference() -> None:
    group = [cell for cell in on_a_cpu() if cell.job == "data_parallel"]
    at = {(turn.cell, turn.pair): turn.order for turn in schedule(group, 8)}
    for cell in group[1:]:
        assert 1 in {abs(at[cell.id, pair] - at[cell.against, pair]) for pair in range(8)}
