"""When the agent tells the coordinator of its workers: in time, and at once when a stall shows."""

from __future__ import annotations

from keepstep.runtime.beats import Beats
from keepstep.runtime.settings import Times

TIMES = Times(patience=4.0, median_step=0.0)  # a beat each second, each half a second in a stall


def test_a_beat_is_due_when_its_time_has_passed() -> None:
    beats = Beats()
    moments = [10.0, 10.5, 10.9, 11.0, 11.5, 12.0]
    assert [beats.due(now, set(), TIMES) for now in moments] == [
        True, False, False, True, False, True,
    ]  # fmt: skip


def test_a_stall_is_told_at_once_when_it_begins_and_when_it_ends() -> None:
    beats = Beats()
    seen = [(10.0, set()), (10.1, {3}), (10.2, {3}), (10.3, {3, 4}), (10.8, {3, 4}), (10.9, set())]
    assert [beats.due(now, set(stalled), TIMES) for now, stalled in seen] == [
        True, True, False, True, True, True,
    ]  # fmt: skip
