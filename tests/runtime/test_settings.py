"""Every timeout follows from one patience, and settings that contradict each other are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from keepstep.runtime import settings as s
from keepstep.runtime.settings import Settings, Times, contradiction

DERIVED = ("lease", "beat", "poll", "leave_step", "form", "form_and_transfer")
patience = st.floats(0.2, 1e4)
step = st.floats(0.0, 1e3)
GOOD = Settings(workers=2, spares=1)


@pytest.mark.parametrize("name", DERIVED)
@examples(max_examples=20, deadline=None)
@given(one=patience, other=patience, median=step)
def test_more_patience_never_makes_a_time_shorter(
    name: str, one: float, other: float, median: float
) -> None:
    low, high = (Times.derive(asked, median) for asked in sorted((one, other)))
    assert getattr(low, name) <= getattr(high, name)


@given(one=step, other=step)
def test_slower_steps_never_make_a_time_shorter(one: float, other: float) -> None:
    low, high = (Times.derive(None, median) for median in sorted((one, other)))
    for name in ("patience", *DERIVED):
        assert getattr(low, name) <= getattr(high, name)


@given(asked=st.none() | patience, median=step)
def test_times_fit_together(asked: float | None, median: float) -> None:
    times = Times.derive(asked, median)
    assert 0 < times.close_poll <= times.poll <= times.beat < times.lease
    assert times.close_poll <= times.urgent_beat <= times.beat
    assert times.poll < times.patience < times.lease
    assert times.leave_step >= times.patience
    assert times.form < times.form_and_transfer


def test_what_was_asked_for_is_taken() -> None:
    assert Times.derive(0.3, 100.0).patience == 0.3


def test_without_a_wish_patience_follows_the_steps_and_has_a_floor() -> None:
    assert Times.derive(None, 4.0).patience == 4.0 * s.PATIENCE_PER_STEP
    assert Times.derive(None, 0.0).patience == s.MIN_PATIENCE


def test_world_size_counts_the_agents_that_are_needed() -> None:
    assert Settings(workers=4, spares=1, min_agents=3, max_agents=5).world_size == 12


def test_ordinary_settings_contradict_nothing() -> None:
    assert contradiction(GOOD) is None
    assert contradiction(replace(GOOD, patience=0.2, min_agents=2, max_agents=2)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patience": 0.19}, "--patience 0.19"),
        ({"patience": 0.0}, "--patience 0"),
        ({"patience": -1.0}, "--patience -1"),
        ({"spares": 17}, "at most 16"),
        ({"min_agents": 3, "max_agents": 2}, "--nnodes 3:2"),
    ],
)
def test_a_contradiction_is_told_with_the_option_that_mends_it(
    change: dict[str, float], words: str
) -> None:
    assert words in (contradiction(replace(GOOD, **change)) or "")  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [float("nan"), float("inf")])
def test_a_patience_that_is_no_number_of_seconds_is_refused(asked: float) -> None:
    assert contradiction(replace(GOOD, patience=asked)) is not None
