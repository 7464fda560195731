"""Who holds the job up: the culprit is named, its victims are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import detect
from keepstep.runtime.detect import Straggler, StragglerWindow, find_stalls, worth_swapping
from keepstep.runtime.progress import Phase
from keepstep.runtime.protocol import Progress

PATIENCE = 2.0


def progress(wid: int, **facts: Any) -> Progress:
    """A member that is in step: inside a collective for a moment."""
    usual = Progress(
        wid=wid,
        generation=1,
        step=9,
        committed=9,
        phase=Phase.COLLECTIVE,
        age=0.1,
        side_age=0.05,
        sequence=40,
        state="S",
        cpu=False,
        step_seconds=0.2,
        busy_seconds=0.1,
    )
    return usual._replace(**facts)


def waiting(wid: int, age: float = 3 * PATIENCE) -> Progress:
    """A victim: inside the collective that somebody else has not reached."""
    return progress(wid, age=age)


def named(
    members: list[Progress], patience: float = PATIENCE, unproven: frozenset[int] = frozenset()
) -> list[tuple[int | None, str]]:
    return [(s.wid, s.fault) for s in find_stalls(members, patience, unproven)]


def test_a_job_in_step_has_no_stall() -> None:
    assert named([]) == []
    assert (
        named([progress(0), progress(1, phase=Phase.STEP), progress(2, phase=Phase.COMMIT)]) == []
    )


def test_a_stopped_process_is_named_and_its_victims_are_not() -> None:
    stopped = progress(1, state="T", age=PATIENCE, side_age=PATIENCE)
    assert named([waiting(0), stopped, waiting(2)]) == [(1, "stop")]


def test_a_held_interpreter_lock_is_told_by_the_side_thread() -> None:
    holds = progress(1, side_age=PATIENCE, age=PATIENCE, cpu=True, phase=Phase.STEP)
    assert named([waiting(0), holds, waiting(2)]) == [(1, "gil")]
    (suspicion,) = find_stalls([waiting(0), holds], PATIENCE)
    assert "interpreter lock" in suspicion.evidence


def test_a_sleeping_main_thread_is_a_hang() -> None:
    hangs = progress(1, phase=Phase.STEP, sequence=39, age=PATIENCE)
    assert named([waiting(0), hangs, waiting(2)]) == [(1, "hang")]
    (suspicion,) = find_stalls([waiting(0), hangs, waiting(2)], PATIENCE)
    assert "39 collectives" in suspicion.evidence
    assert "2 of 2 others" in suspicion.evidence
    assert suspicion.age == PATIENCE


def test_of_those_behind_the_furthest_behind_is_named() -> None:
    first = progress(1, phase=Phase.STEP, sequence=37, age=PATIENCE)
    second = progress(2, sequence=38, age=PATIENCE)
    assert named([waiting(0), first, second]) == [(1, "hang")]


def test_two_that_are_equally_behind_are_both_named() -> None:
    late = [progress(wid, phase=Phase.STEP, sequence=39, age=PATIENCE) for wid in (1, 2)]
    assert named([waiting(0), *late, waiting(3)]) == [(1, "hang"), (2, "hang")]


def test_the_one_outside_a_collective_is_named_when_counts_are_equal() -> None:
    outside = progress(1, phase=Phase.STEP, age=PATIENCE)
    assert named([waiting(0), outside, waiting(2)]) == [(1, "hang")]


@pytest.mark.parametrize("age", [0.0, PATIENCE * 0.99])
def test_nobody_is_named_before_patience_is_over(age: float) -> None:
    assert named([waiting(0, age), progress(1, phase=Phase.STEP, sequence=39, age=age)]) == []


def test_a_busy_main_thread_gets_longer() -> None:
    def at(age: float) -> list[tuple[int | None, str]]:
        busy = progress(1, phase=Phase.STEP, sequence=39, age=age, cpu=True)
        return named([waiting(0, age), busy])

    assert at(PATIENCE * detect.BUSY_FACTOR * 0.99) == []
    assert at(PATIENCE * detect.BUSY_FACTOR) == [(1, "hang")]


def test_the_first_step_of_a_process_gets_longer() -> None:
    def at(age: float) -> list[tuple[int | None, str]]:
        late = progress(1, phase=Phase.STEP, sequence=39, age=age)
        return named([waiting(0, age), late], unproven=frozenset({1}))

    assert at(PATIENCE * detect.FIRST_STEP_FACTOR * 0.99) == []
    assert at(PATIENCE * detect.FIRST_STEP_FACTOR) == [(1, "hang")]


def test_a_stopped_process_gets_no_longer_even_in_its_first_step() -> None:
    stopped = progress(1, state="T", age=PATIENCE, sequence=0, phase=Phase.STEP)
    assert named([waiting(0), stopped], unproven=frozenset({0, 1})) == [(1, "stop")]


def test_a_stopped_process_gets_half_the_patience_and_one_in_a_debugger_all_of_it() -> None:
    def at(age: float, state: str) -> list[tuple[int | None, str]]:
        return named([waiting(0, age), progress(1, state=state, age=age, side_age=age)])

    assert at(PATIENCE * detect.STOPPED_SHARE * 0.99, "T") == []
    assert at(PATIENCE * detect.STOPPED_SHARE, "T") == [(1, "stop")]
    assert at(PATIENCE * 0.99, "t") == []
    assert at(PATIENCE, "t") == [(1, "stop")]
    assert detect.CLOSE < detect.STOPPED_SHARE  # its state is known by then


def test_when_all_wait_at_the_same_place_nobody_is_named_and_later() -> None:
    def at(age: float) -> list[tuple[int | None, str]]:
        return named([waiting(0, age), waiting(1, age)])

    assert at(PATIENCE * detect.UNKNOWN_FACTOR * 0.99) == []
    assert at(PATIENCE * detect.UNKNOWN_FACTOR) == [(None, "unknown")]


def test_a_member_that_moves_keeps_the_others_from_being_an_unknown_stall() -> None:
    moving = progress(1, phase=Phase.STEP, age=0.1)
    assert named([waiting(0, 100.0), moving]) == []


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.WAITING, Phase.FORMING, Phase.LEFT])
def test_what_does_not_train_does_not_stall(phase: Phase) -> None:
    assert named([progress(0, phase=phase, age=1e6), progress(1)]) == []


def test_a_member_that_others_still_wait_for_is_named_even_if_it_is_the_only_one_active() -> None:
    alone = progress(0, phase=Phase.STEP, age=100 * PATIENCE)
    finished = progress(1, phase=Phase.WAITING)
    assert named([alone, finished]) in ([(0, "hang")], [(None, "unknown")])


def test_victims_outside_a_marked_collective_are_not_named_while_one_behind_them_moves() -> None:
    slow = progress(1, phase=Phase.STEP, sequence=37, age=PATIENCE / 2)
    victims = [progress(wid, phase=Phase.STEP, age=1.1 * PATIENCE) for wid in (0, 2)]
    assert named([victims[0], slow, victims[1]]) == []


def test_one_behind_is_not_named_while_another_is_further_behind_and_moves() -> None:
    slow = progress(1, phase=Phase.STEP, sequence=37, age=PATIENCE / 2)
    middle = progress(2, sequence=38, age=1.1 * PATIENCE)
    assert named([waiting(0), slow, middle]) == []


culprits = st.sampled_from(
    [
        {"state": "T", "side_age": 50.0, "phase": Phase.STEP, "sequence": 39},
        {"state": "t", "side_age": 50.0, "phase": Phase.COLLECTIVE},
        {"side_age": 50.0, "cpu": True, "phase": Phase.STEP, "sequence": 39},
        {"phase": Phase.STEP, "sequence": 39},
        {"phase": Phase.STEP, "sequence": 39, "cpu": True},
        {"phase": Phase.COMMIT, "sequence": 39},
        {"phase": Phase.STEP},
        {"phase": Phase.COLLECTIVE, "sequence": 39},
    ]
)


@settings(max_examples=120, deadline=None)
@given(
    facts=culprits,
    age=st.floats(0.0, 30 * PATIENCE),
    extra=st.lists(st.floats(-0.5 * PATIENCE, 0.0), min_size=1, max_size=5),
    place=st.integers(0, 5),
    proven=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_victims_inside_a_collective_are_never_named(
    facts: dict[str, Any],
    age: float,
    extra: list[float],
    place: int,
    proven: bool,
    order: Any,
) -> None:
    """Victims entered the collective a little before or after the culprit went quiet."""
    members = [waiting(wid, max(0.0, age + more)) for wid, more in enumerate(extra)]
    members.insert(place, progress(99, age=age, **facts))
    order.shuffle(members)
    unproven = frozenset[int]() if proven else frozenset({99})
    found = named(members, unproven=unproven)
    assert {wid for wid, _ in found} <= {99}
    if age >= PATIENCE * detect.FIRST_STEP_FACTOR:
        assert [wid for wid, _ in found] == [99]
    if age < PATIENCE:
        assert found == []


# --- stragglers -----------------------------------------------------------------------------------


def window(busy: dict[int, list[float]]) -> StragglerWindow:
    found = StragglerWindow()
    for wid, values in busy.items():
        for committed, seconds in enumerate(values, 1):
            found.add(progress(wid, committed=committed, busy_seconds=seconds))
    return found


FULL = detect.WINDOW


def test_a_rank_that_takes_twice_as_long_is_a_straggler() -> None:
    found = window({0: [1.0] * FULL, 1: [2.0] * FULL, 2: [1.25] * FULL}).find([0, 1, 2])
    assert found is not None
    assert (found.wid, found.gain_per_step) == (1, 0.75)
    assert found.score == pytest.approx(2.0 / 1.125)


@pytest.mark.parametrize("factor", [1.0, 1.4, 0.5])
def test_a_rank_that_is_hardly_slower_or_faster_is_none(factor: float) -> None:
    slow_or_not = window({0: [1.0] * FULL, 1: [factor] * FULL, 2: [1.0] * FULL})
    found = slow_or_not.find([0, 1, 2])
    assert found is None or found.wid != 1


def test_a_few_slow_steps_make_no_straggler() -> None:
    spiky = [1.0, 9.0] * (FULL // 2)
    assert window({0: [1.0] * FULL, 1: spiky, 2: [1.0] * FULL}).find([0, 1, 2]) is None


def test_there_is_no_straggler_before_everybody_filled_the_window() -> None:
    assert window({0: [1.0] * FULL, 1: [5.0] * (FULL - 1)}).find([0, 1]) is None
    assert window({1: [5.0] * FULL}).find([0, 1]) is None


def test_a_job_of_one_has_no_straggler() -> None:
    assert window({0: [5.0] * FULL}).find([0]) is None


def test_only_the_last_steps_count() -> None:
    recovered = [9.0] * 50 + [1.0] * FULL
    assert window({0: [1.0] * 58, 1: recovered}).find([0, 1]) is None


def test_the_same_step_counts_once_and_a_step_without_measure_not_at_all() -> None:
    found = StragglerWindow()
    for wid, busy in ((0, 1.0), (1, 5.0)):
        for _ in range(3 * FULL):
            found.add(progress(wid, committed=4, busy_seconds=busy))
        for committed in range(10, 10 + 2 * FULL):
            found.add(progress(wid, committed=committed, busy_seconds=0.0))
    assert found.find([0, 1]) is None


def test_a_new_generation_starts_from_scratch() -> None:
    found = window({0: [1.0] * FULL, 1: [5.0] * FULL})
    assert found.find([0, 1]) is not None
    found.clear()
    assert found.find([0, 1]) is None


def test_former_members_do_not_count() -> None:
    found = window({0: [1.0] * FULL, 1: [1.0] * FULL, 7: [9.0] * FULL})
    assert found.find([0, 1]) is None


def test_a_swap_is_worth_it_only_if_it_saves_clearly_more_than_it_costs() -> None:
    straggler = Straggler(wid=1, score=2.0, gain_per_step=0.5)
    margin = detect.SWAP_MARGIN
    assert worth_swapping(straggler, steps_left=100, cost=0.5 * 100 / margin * 0.99)
    assert not worth_swapping(straggler, steps_left=100, cost=0.5 * 100 / margin)
    assert not worth_swapping(straggler, steps_left=0, cost=0.0)
    assert not worth_swapping(Straggler(wid=1, score=2.0, gain_per_step=-1.0), 100, 0.1)
