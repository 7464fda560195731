"""The dumps of real runs (see data/recorder/README.md) and of another project's fault tests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from keepstep.recorder.meaning import MEANINGS, Progress, progress
from keepstep.recorder.model import Backend, RankDump, State
from keepstep.recorder.read import Reading, read_tree

DATA = Path(__file__).parents[1] / "data" / "recorder"
OTHERS = Path(__file__).parents[3] / "shared" / "data" / "recorder"
RUNS = sorted(path.name for path in DATA.iterdir() if path.is_dir())

TRUTH = json.loads((DATA / "truth.json").read_text())
EMPTY = "h200-drill-2.14-nccl2-asked"  # of a backend that had no recorder
EXPECTED: dict[str, list[int | None]] = {
    "gloo-2.15": [5, 3, 5],
    "h200-4rank-nccl-legacy-extra": [25, 24, 24, 24],
    "h200-4rank-nccl-legacy-p2p": [23, 29, 27, 22],
    "h200-4rank-nccl-legacy-size": [17, 17, 17, 17],
    "h200-4rank-nccl2-dead": [17, None, 17, 17],
    "h200-4rank-nccl2-healthy": [75, 75, 75, 75],
    "h200-4rank-nccl2-kernel": [18, 18, 18, 18],
    "h200-4rank-nccl2-skip": [16, 16, None, 16],
    "h200-nccl-legacy-allreduce-hang": [5, 5, 3],
    "h200-nccl2-allreduce-hang": [5, 5],
    "h200-drill-2.14-nccl": [4, 3, 4],
    "h200-drill-2.14-nccl-asked": [4, 3, 4],
    "h200-drill-2.14-nccl2-asked": [0, 0, 0],
    "h200-drill-nccl-lazy-asked": [4, 3, 4],
    "h200-drill-nccl-legacy": [4, 3, 4],
    "h200-drill-nccl2": [4, None, 4],
    "h200-drill-nccl2-asked": [4, 3, 4],
    "h200-drill-use-nccl2-0": [4, 3, 4],
    "h200x2-drill-2.11-nccl": [4, 3, 4],
    "h200x2-drill-2.11-nccl-asked": [4, 3, 4],
    "h200x2-drill-nccl-lazy-asked": [4, 3, 4],
    "h200x2-drill-nccl-legacy": [4, 3, 4],
    "h200x2-drill-nccl-legacy-asked": [4, 3, 4],
    "h200x2-drill-nccl2": [4, None, 4],
    "h200x2-drill-nccl2-asked": [4, 3, 4],
    **{
        run: [truth["entries"].get(str(rank)) for rank in range(truth["ranks"])]
        for run, truth in TRUTH.items()
    },
}


def test_every_run_is_expected_here() -> None:
    assert sorted(EXPECTED) == RUNS


@pytest.fixture(scope="module")
def readings() -> dict[str, Reading]:
    return {run: read_tree(DATA / run) for run in RUNS}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_has_all_its_entries(run: str, readings: dict[str, Reading]) -> None:
    found: Counter[int | None] = Counter()
    for dump in readings[run].dumps:
        found[dump.rank] += len(dump.dump.entries)
    assert found == {rank: n for rank, n in enumerate(EXPECTED[run]) if n is not None}
    allowed = {"group-ranks-unknown", "duplicate"} if "gloo" in run else set()
    allowed |= {"nothing-recorded"} if run == EMPTY else set()
    assert {finding.code for finding in readings[run].findings} <= allowed


@pytest.mark.parametrize("run", [run for run in RUNS if run != EMPTY])
def test_the_backend_of_a_run_is_known(run: str, readings: dict[str, Reading]) -> None:
    named = ("gloo", "nccl-legacy", "use-nccl2-0", "nccl-lazy", "nccl2")
    # The name nccl of an old version is the legacy backend.
    backends = {next((name for name in named if name in run), "nccl-legacy")}
    backends = {"nccl-legacy" if name == "use-nccl2-0" else name for name in backends}
    if run in TRUTH:
        names = {"nccl": "nccl-legacy"}
        backends = {names.get(name, name) for name in TRUTH[run]["recorders"]}
    assert {d.dump.backend for d in readings[run].dumps} == backends


@pytest.mark.parametrize("run", [run for run in RUNS if "h200" in run and run != EMPTY])
def test_what_the_table_of_meanings_says_is_so(run: str, readings: dict[str, Reading]) -> None:
    for dump in (d.dump for d in readings[run].dumps):
        meaning = MEANINGS[dump.backend]
        assert min(entry.op_id for entry in dump.entries) == meaning.first_op_id
        assert all(group.ranks for group in dump.groups) == meaning.group_ranks
        states = {entry.state for entry in dump.entries}
        assert State.COMPLETED in states
        assert State.STARTED not in states


def pending(dump: RankDump) -> list[tuple[str, int]]:
    return [
        (entry.group.name, entry.sequence)
        for entry in dump.dump.entries
        if progress(entry, dump.dump.backend) is Progress.PENDING
    ]


def test_the_hang_is_where_it_was_planted(readings: dict[str, Reading]) -> None:
    first, second = readings["h200-nccl2-allreduce-hang"].dumps
    assert pending(first)[-1] == pending(second)[-1] == ("0", 4)
    legacy = readings["h200-nccl-legacy-allreduce-hang"].dumps
    assert [pending(dump) for dump in legacy] == [[("0", 4)], [("0", 4)], []]


def test_gloo_shows_finished_and_timed_out_alike(readings: dict[str, Reading]) -> None:
    for found in readings["gloo-2.15"].dumps:
        assert found.dump.backend is Backend.GLOO
        assert {progress(e, Backend.GLOO) for e in found.dump.entries} == {Progress.ENDED}
        assert all(group.ranks is None for group in found.dump.groups)


def test_all_runs_in_one_tree_are_as_many_attempts(readings: dict[str, Reading]) -> None:
    reading = read_tree(DATA)
    assert sorted({dump.attempt for dump in reading.dumps}) == RUNS
    for run in RUNS:
        alone = [(d.rank, d.dump) for d in readings[run].dumps]
        assert [(d.rank, d.dump) for d in reading.dumps if d.attempt == run] == alone


@pytest.mark.parametrize(
    ("run", "entries"), [("nvrx-gpu_error_1st", 289), ("nvrx-lock_gil_1st", 142)]
)
def test_the_dumps_of_another_project(run: str, entries: int) -> None:
    if not (OTHERS / run).is_dir():
        pytest.skip(f"no folder {OTHERS / run}: these dumps are not part of this repository")
    reading = read_tree(OTHERS / run)
    assert [d.rank for d in reading.dumps] == list(range(16))
    assert {d.dump.backend for d in reading.dumps} == {Backend.NCCL_LEGACY}
    assert {d.dump.version for d in reading.dumps} == {"2.9"}
    assert sum(len(d.dump.entries) for d in reading.dumps) == entries
    assert all(len(d.dump.status) > 10 for d in reading.dumps)
    assert {f.code for f in reading.findings} <= {"foreign", "nothing-recorded"}
