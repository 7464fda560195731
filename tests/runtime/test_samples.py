"""Whether every sample was used once is counted right, also when the notes are not whole."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime.sampler import Sampler
from keepstep.runtime.samples import (
    SampleNotes,
    count_lost_and_repeated,
    effective_generation,
    merge,
)

BATCH = 12


def expand(runs: list[list[int]]) -> list[tuple[int, int, range]]:
    """What runs say, one entry a step: the meaning of a run, written down independently."""
    return [
        (generation, step, range(start + (step - first) * stride, stop + (step - first) * stride))
        for generation, first, last, start, stop, stride in runs
        for step in range(first, last + 1)
    ]


def test_a_generation_is_one_run() -> None:
    notes, sampler = SampleNotes(), Sampler(100, BATCH)
    for step in range(5, 50):
        notes.note(1, step, sampler.positions(step, 1, 3), BATCH)
    assert notes.runs == [[1, 5, 49, 5 * BATCH + 4, 5 * BATCH + 8, BATCH]]


@settings(max_examples=60, deadline=None)
@given(
    stretches=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 15)), max_size=5
    ),
    data=st.data(),
)
def test_runs_say_exactly_what_was_noted(
    stretches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    notes, sampler, noted = SampleNotes(), Sampler(100, BATCH), []
    for generation, (first, count, world_size) in enumerate(stretches, 1):
        rank = data.draw(st.integers(0, world_size - 1))
        for step in range(first, first + count):
            positions = sampler.positions(step, rank, world_size)
            notes.note(generation, step, positions, BATCH)
            noted.append((generation, step, positions))
    assert expand(notes.runs) == noted
    assert len(notes.runs) <= len(stretches)


def test_positions_that_stay_where_they_are_are_noted_as_they_are() -> None:
    notes = SampleNotes()
    noted = [(1, 0, range(4)), (1, 1, range(4)), (1, 2, range(8, 12))]
    for entry in noted:
        notes.note(*entry, BATCH)
    assert expand(notes.runs) == noted


def test_merging_keeps_the_longest_of_equal_runs() -> None:
    short, long = [0, 0, 1, 0, 3, 0, 4, 8], [0, 0, 1, 0, 9, 0, 4, 8]
    other = [1, 0, 1, 0, 3, 4, 8, 8]
    for rows in ([short, long, other], [long, short, other]):
        assert sorted(merge(rows)) == [long, other]


def test_a_step_counts_in_the_last_generation_that_starts_at_or_before_it() -> None:
    generations = [[1, 0, 4], [2, 10, 4], [3, 5, 4]]
    wanted = {0: 1, 4: 1, 5: 3, 9: 3, 10: 3, 50: 3}
    assert {step: effective_generation(generations, step) for step in wanted} == wanted


# --- counting, against a job played step by step --------------------------------------------------


@dataclass
class Played:
    """A job that was played: what each worker noted, and what the final state is made of."""

    rows: list[list[int]]
    generations: list[list[int]]
    steps: int
    used: dict[int, list[range]]  # step -> shares behind the final state


@st.composite
def jobs(draw: st.DrawFn) -> Played:
    """Generations of any world size; each starts where the one before got to, or further back."""
    steps, reached, number, first_worker = draw(st.integers(1, 12)), 0, 0, 0
    played = Played([], [], steps, {})
    while not played.generations or reached < steps:
        number += 1
        last_one = number == 6
        start = draw(st.integers(0, reached)) if number > 1 else 0
        stop = steps if last_one else draw(st.integers(start, steps))
        world_size = draw(st.integers(1, BATCH + 2))
        played.generations.append([number, start, world_size])
        shares = play(played, number, range(start, stop), world_size, first_worker)
        played.used |= shares
        first_worker, reached = first_worker + world_size, stop
    return played


def play(
    played: Played, generation: int, steps: range, world_size: int, first_worker: int
) -> dict[int, list[range]]:
    sampler, shares = Sampler(97, BATCH), {step: list[range]() for step in steps}
    for rank in range(world_size):
        notes = SampleNotes()
        for step in steps:
            positions = sampler.positions(step, rank, world_size)
            notes.note(generation, step, positions, BATCH)
            shares[step].append(positions)
        played.rows += [
            [first_worker + rank, number, *run] for number, run in enumerate(notes.runs)
        ]
    return shares


def count_by_hand(used: dict[int, list[range]], steps: int) -> tuple[int, int]:
    """The oracle: look at every single position."""
    times = dict.fromkeys(range(steps * BATCH), 0)
    for step in range(steps):
        for positions in used.get(step, []):
            for position in positions:
                times[position] += 1
    lost = sum(count == 0 for count in times.values())
    return lost, sum(count - 1 for count in times.values() if count > 1)


@settings(max_examples=80, deadline=None)
@given(played=jobs())
def test_nothing_is_lost_or_repeated_whatever_generations_there_were(played: Played) -> None:
    counted = count_lost_and_repeated(merge(played.rows), played.generations, played.steps)
    assert counted == (0, 0) == count_by_hand(played.used, played.steps)


@settings(max_examples=80, deadline=None)
@given(played=jobs(), data=st.data())
def test_planted_losses_and_repeats_are_counted_as_by_hand(
    played: Played, data: st.DataObject
) -> None:
    plan = st.tuples(st.integers(0, played.steps - 1), st.sampled_from(["lose", "repeat"]))
    rows = single_steps(merge(played.rows))
    for step, what in data.draw(st.lists(plan, max_size=4)):
        chosen = effective_generation(played.generations, step)
        candidates = [
            row for row in rows if row[2] == chosen and row[3] == step and row[6] > row[5]
        ]
        if not candidates or len(rows) == 1:  # without any note there is no count
            continue
        row = data.draw(st.sampled_from(candidates))
        if what == "lose":
            rows.remove(row)
        else:
            rows.append([10_000 + len(rows), *row[1:]])
    used: dict[int, list[range]] = {}
    for _, _, generation, step, _, start, stop, _ in rows:
        if generation == effective_generation(played.generations, step):
            used.setdefault(step, []).append(range(start, stop))
    counted = count_lost_and_repeated(rows, played.generations, played.steps)
    assert counted == (count_by_hand(used, played.steps) if rows else None)


def single_steps(rows: list[list[int]]) -> list[list[int]]:
    return [
        [row[0], row[1], generation, step, step, positions.start, positions.stop, BATCH]
        for row in rows
        for generation, step, positions in expand([row[2:]])
    ]


@pytest.mark.parametrize("steps", [1, 3])
def test_losing_the_last_rank_of_the_first_step_is_a_loss(steps: int) -> None:
    sampler = Sampler(97, BATCH)
    rows = [
        [rank, step, 1, step, step, shares.start, shares.stop, BATCH]
        for step in range(steps)
        for rank in range(3)
        if (shares := sampler.positions(step, rank, 3)) and (step, rank) != (0, 2)
    ]
    assert count_lost_and_repeated(rows, [[1, 0, 3]], steps) == (BATCH // 3, 0)


def test_a_share_taken_twice_in_one_step_is_a_repeat() -> None:
    notes, sampler = SampleNotes(), Sampler(97, BATCH)
    for _ in range(2):
        notes.note(1, 0, sampler.positions(0, 0, 1), BATCH)
    rows = merge([[0, number, *run] for number, run in enumerate(notes.runs)])
    assert count_lost_and_repeated(rows, [[1, 0, 1]], 1) == (0, BATCH)


def test_without_notes_there_is_no_count() -> None:
    assert count_lost_and_repeated([], [[1, 0, 2]], 5) is None
    assert count_lost_and_repeated([[0, 0, 1, 0, 0, 0, 4, 4]], [], 5) is None
    assert count_lost_and_repeated([[0, 0, 1, 0, 0, 0, 4, 4]], [[1, 0, 1]], 0) is None
