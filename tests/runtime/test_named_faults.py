"""Faults that the agent carries out: once, and not again for a coordinator that did not hear it."""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.inject import parse
from keepstep.runtime.named_faults import NamedFaults


def test_a_coordinator_is_killed_once_and_its_successor_is_told() -> None:
    said: list[p.Message] = []
    kills: list[int] = []
    faults = NamedFaults(lambda: kills.append(1), said.append)
    faults.plan = tuple(parse(["kill@5:coordinator", "kill@5:0"], 2))
    for newest in (4, 5, 6):
        faults.fire_due(newest, [], [])
    assert kills == [1], "rank 0 carries out its own fault"
    assert [(m.index, m.step) for m in said if isinstance(m, p.Fired)] == [(0, 5)]
    assert [(m.index, m.step) for m in faults.again() if isinstance(m, p.Fired)] == [(0, 5)]


def test_what_a_worker_has_said_is_repeated_and_does_not_happen_again() -> None:
    said: list[p.Message] = []
    faults = NamedFaults(None, said.append)
    faults.plan = tuple(parse(["kill@5:spare"], 2))
    faults.note(p.Fired(wid=2, index=0, step=5))
    faults.fire_due(9, [], [])
    assert said == []
    assert [m.index for m in faults.again() if isinstance(m, p.Fired)] == [0]
