"""What a worker proposes to know of its own rank is what its agent finds when it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keepstep.runtime import vault
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.state import State


class Counter:
    """Something per rank that changes."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Rank:
    """A worker that does nothing but leave records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counter = folder, Counter()
        state = State({"model": torch.nn.Linear(1, 1)}, per_rank={"counter": self.counter})
        self.records = RankRecords(state, SampleNotes(), vault.RankRecordWriter(folder, 1))
        self.records.begin(0, 0)

    def step(self, number: int, late: int = 0) -> None:
        """One step; ``late``: what changes after its last collective."""
        self.counter.value += 1
        self.records.note_entry(number + 1)
        self.counter.value += late
        self.records.commit(number + 1)

    def known(self, committed: int) -> tuple[int, tuple[int, int]]:
        """By the worker's word, and by what its agent finds."""
        found = vault.known_counts(vault.read_records(self.folder, 1))
        return self.records.known(committed), found


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_nothing_is_known_of_a_step_that_no_collective_has_ended(rank: Rank) -> None:
    rank.step(0)
    assert rank.known(1) == (1, (1, 1))


@pytest.mark.parametrize("late", [0, 1])
def test_an_entry_counts_if_nothing_changed_after_it_in_the_step_before(
    rank: Rank, late: int
) -> None:
    rank.step(0, late)
    rank.counter.value += 1
    rank.records.note_entry(2)
    count = 1 if late else 2
    assert rank.known(1) == (count, (1, count))


def test_a_step_that_is_interrupted_leaves_no_trace_in_the_rank(rank: Rank) -> None:
    rank.step(0)
    rank.counter.value = 99
    rank.records.go_back()
    assert rank.counter.value == 1


def test_an_entry_of_an_earlier_generation_does_not_count(rank: Rank) -> None:
    rank.step(0)
    rank.records.note_entry(2)
    assert rank.records.known(1) == 2
    rank.records.begin(2, 1)
    assert rank.records.known(1) == 1


def test_a_rank_that_dies_after_it_went_back_is_not_taken_for_one_that_is_ahead(
    rank: Rank, tmp_path: Path
) -> None:
    for number in range(5):
        rank.step(number)
    rank.records.begin(2, 3)
    assert rank.known(3) == (3, (3, 3))
    rank.counter.value += 1
    rank.records.note_entry(4)
    assert rank.known(3) == (3, (3, 3))  # nothing tells that step 3 ends as it did at first


def test_an_unchanged_state_is_confirmed_and_not_written_again(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.step(0)
    written: list[bool] = []
    writer = rank.records._writer
    monkeypatch.setattr(writer, "write", lambda *_, is_commit, **__: written.append(is_commit))
    rank.step(1)
    assert written == [False]
    rank.step(2, late=1)
    assert written == [False, False, True]


def test_a_rank_that_changed_late_once_may_do_so_again(rank: Rank) -> None:
    rank.step(0)
    assert not rank.records.changes_late
    rank.step(1, late=1)
    rank.step(2)
    assert rank.records.changes_late


def test_the_last_two_commits_are_there_while_a_step_runs(rank: Rank) -> None:
    """A rank may be one step ahead of another, in the last collective of the next."""
    for number in range(4):
        rank.step(number)
    rank.counter.value += 1
    rank.records.note_entry(5)
    found = vault.read_records(rank.folder, 1)
    assert vault.known_counts(found) == (4, 5)
    assert None not in [vault.find_record(found, count) for count in (3, 4, 5)]


def test_what_an_earlier_collective_left_is_not_taken_for_the_last_ones(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.step(0)
    rank.counter.value += 1
    rank.records.note_entry(2)
    assert rank.records.has_entered(2)
    assert rank.known(1) == (2, (1, 2))

    def fail() -> dict[str, int]:
        raise OSError("the loader does not answer")

    rank.counter.value += 1
    with monkeypatch.context() as patch:
        patch.setattr(rank.counter, "state_dict", fail)
        with pytest.raises(OSError, match="does not answer"):
            rank.records.note_entry(2)
    assert rank.known(1) == (1, (1, 1))
    rank.records.note_entry(2)
    assert rank.known(1) == (2, (1, 2))
