"""What a fault costs, from the marks that training processes wrote: no process is started here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery.marks import COMMIT, ENTER, READY, Mark, MarkReader, parse
from benchmarks.recovery.metrics import (
    Fault,
    Recovery,
    digests,
    fell_into_exchange,
    interrupted_step,
    mean_step,
    measure,
    step_seconds,
)

FAULT = Fault(kind="kill", pid=101, time=10.05)


def commit(
    step: int, time: float, *, rank: int, pid: int, members: int = 3, digest: str = ""
) -> Mark:
    return Mark(
        event=COMMIT, rank=rank, pid=pid, step=step, time=time, members=members, digest=digest
    )


def steps(
    first: int, count: int, start: float, pids: dict[int, int], members: int = 3
) -> list[Mark]:
    """Commits of all ranks in ``pids``, 0.1 s a step."""
    return [
        commit(first + n, start + n / 10, rank=rank, pid=pid, members=members)
        for n in range(count)
        for rank, pid in pids.items()
    ]


def rounded(recovery: Recovery) -> Recovery:
    """Times to the millisecond."""
    times = {name: getattr(recovery, name) for name in ("next_step", "caught_up", "full_strength")}
    values: dict[str, Any] = {
        name: None if time is None else round(time, 3) for name, time in times.items()
    }
    return dataclasses.replace(recovery, **values)


ALL = {0: 100, 1: 101, 2: 102}
BEFORE = steps(0, 11, 9.0, ALL)  # step 10 is done at 10.0, step 11 is interrupted


def test_a_replaced_rank_continues_with_the_same_step() -> None:
    after = steps(11, 3, 10.3, {0: 100, 1: 103, 2: 102})
    found = measure([*BEFORE, *after], FAULT, 3)
    assert rounded(found) == Recovery(
        next_step=0.25,
        caught_up=0.25,
        full_strength=0.25,
        lost_steps=0,
        short_steps=0,
    )


def test_a_restart_from_a_checkpoint_repeats_steps() -> None:
    after = steps(6, 8, 15.0, {0: 200, 1: 201, 2: 202})
    found = measure([*BEFORE, *after], FAULT, 3)
    assert rounded(found) == Recovery(
        next_step=4.95,
        caught_up=5.45,  # step 11
        full_strength=4.95,
        lost_steps=5,
        short_steps=0,
    )


def test_survivors_that_go_on_alone_are_short_of_a_rank_until_it_is_back() -> None:
    alone = steps(11, 4, 10.5, {0: 100, 2: 102}, members=2)
    healing = steps(15, 1, 10.9, {0: 100, 1: 103, 2: 102}, members=2)  # it gives nothing yet
    full = steps(16, 2, 11.0, {0: 100, 1: 103, 2: 102})
    found = measure([*BEFORE, *alone, *healing, *full], FAULT, 3)
    assert rounded(found) == Recovery(
        next_step=0.45,
        caught_up=0.45,
        full_strength=0.95,
        lost_steps=0,
        short_steps=5,
    )


def test_a_survivor_that_is_late_with_the_last_common_step_has_not_recovered() -> None:
    late = commit(10, 10.06, rank=2, pid=102)
    before = [mark for mark in BEFORE if (mark.rank, mark.step) != (2, 10)]
    found = measure([*before, late], FAULT, 3)
    assert found.next_step is None
    after = steps(11, 1, 10.3, {0: 100, 1: 103, 2: 102})
    assert measure([*before, late, *after], FAULT, 3).next_step == pytest.approx(0.25)


def test_the_lost_process_itself_proves_nothing() -> None:
    stray = commit(11, 10.2, rank=1, pid=FAULT.pid)  # a stopped process that was continued
    found = measure([*BEFORE, stray], FAULT, 3)
    assert (found.next_step, found.lost_steps) == (None, None)


def test_a_step_of_two_ranks_is_not_full_strength_though_each_believes_it() -> None:
    after = steps(11, 3, 10.3, {0: 100, 2: 102}, members=3)
    assert measure([*BEFORE, *after], FAULT, 3).full_strength is None


def test_nothing_after_the_fault_is_never() -> None:
    found = measure(BEFORE, FAULT, 3)
    assert found == Recovery(
        next_step=None, caught_up=None, full_strength=None, lost_steps=None, short_steps=0
    )


def test_the_interrupted_step_follows_the_last_one_of_the_lost_process() -> None:
    assert interrupted_step(BEFORE, FAULT) == 11
    with pytest.raises(ValueError, match="committed no step"):
        interrupted_step([], FAULT)


def test_a_fault_in_the_exchange_of_gradients_is_told_from_one_before() -> None:
    def enter(step: int, pid: int) -> Mark:
        return Mark(event=ENTER, rank=1, pid=pid, step=step, time=10.04)

    assert not fell_into_exchange([*BEFORE, enter(10, 101), enter(11, 100)], FAULT)
    assert fell_into_exchange([*BEFORE, enter(11, 101)], FAULT)


def test_a_healthy_step_is_the_median_between_commits_of_rank_0() -> None:
    slow_start = [commit(0, 5.0, rank=0, pid=100)]
    other_rank = [commit(1, 9.95, rank=1, pid=101)]
    found = step_seconds([*slow_start, *BEFORE, *other_rank], since=0.0, until=10.0, skip=1)
    assert found == pytest.approx(0.1)
    with pytest.raises(ValueError, match="too few"):
        step_seconds(BEFORE, since=9.95, until=10.0)


def test_a_step_of_a_turn_is_the_mean_between_commits_of_rank_0() -> None:
    marks = [commit(n, time, rank=0, pid=100) for n, time in enumerate((1.0, 2.0, 2.1, 2.4, 3.0))]
    other_rank = [commit(1, 2.2, rank=1, pid=101)]
    assert mean_step([*marks, *other_rank], since=2.0, until=2.9) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="too few"):
        mean_step(marks, since=2.9, until=9.0)


def test_digests_are_those_written_after_the_fault() -> None:
    marks = [
        commit(9, 9.9, rank=0, pid=100, digest="old"),
        commit(12, 10.4, rank=0, pid=100, digest="b"),
        commit(12, 10.4, rank=2, pid=102, digest="b"),
        commit(12, 10.4, rank=1, pid=103, digest="a"),
    ]
    assert digests(marks, since=FAULT.time) == ["a", "b"]


# The lines themselves.


@pytest.mark.parametrize("digest", ["", "ab12"])
def test_a_mark_survives_its_line(digest: str) -> None:
    mark = commit(7, 12.25, rank=2, pid=31, digest=digest)
    assert parse(mark.line()) == mark


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    marks = [Mark(event=READY, rank=0, pid=1, step=0, time=1.0), *steps(0, 1, 2.0, {0: 1})]
    first, second = (mark.line() for mark in marks)
    path, reader = tmp_path / "marks-1", MarkReader(tmp_path)
    path.write_text(first + second[:5])
    assert reader.update() == marks[:1]
    path.write_text(first + second)
    assert reader.update() == marks
    assert reader.update() == marks
