"""Faults on purpose are what was written down, and what cannot be carried out is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import inject
from keepstep.runtime.inject import InjectedError, Injection, Injector, parse

WORLD = 4
plain = st.builds(
    lambda kind, step, rank: f"{kind}@{step}:{rank}",
    st.sampled_from(sorted(inject.KINDS)),
    st.integers(0, 10**6),
    st.integers(0, WORLD - 1),
)
with_value = st.builds(
    lambda kind, value: f"{kind}@3:1={value}",
    st.sampled_from(sorted(inject.VALUES)),
    st.integers(1, 255),
)
by_name = st.sampled_from(["kill@5:spare", "kill@5:coordinator", "kill@recovery:0"])


@settings(max_examples=40, deadline=None)
@given(specs=st.lists(plain | with_value | by_name, max_size=5))
def test_a_specification_is_told_as_it_was_written(specs: list[str]) -> None:
    found = parse(specs, WORLD)
    assert [str(injection) for injection in found] == specs
    assert [injection.index for injection in found] == list(range(len(specs)))


def test_the_parts_of_a_specification() -> None:
    slow, spare, recovery = parse(["slow@20:2=3.5", "kill@4:spare", "kill@recovery:1"], WORLD)
    assert slow == Injection(index=0, kind="slow", step=20, rank=2, target="2", value=3.5)
    assert (spare.rank, spare.target, spare.step) == (None, "spare", 4)
    assert (recovery.rank, recovery.step) == (1, None)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown fault 'explode'") as caught:
        parse(["explode@3:1"], WORLD)
    assert all(kind in str(caught.value) for kind in inject.KINDS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "KIND@STEP:RANK"),
        ("kill", "KIND@STEP:RANK"),
        ("kill@3", "KIND@STEP:RANK"),
        ("kill@-3:1", "KIND@STEP:RANK"),
        ("kill@3:-1", "KIND@STEP:RANK"),
        ("kill@3:1=", "KIND@STEP:RANK"),
        ("slow@3:1=fast", "KIND@STEP:RANK"),
        ("kill@3:1\n", "KIND@STEP:RANK"),
        ("kill@3:4", "4 ranks"),
        ("kill@3:1=7", "takes no value"),
        ("exit@3:1=256", "VALUE 256 of exit is not a whole number from 0 to 255"),
        ("exit@3:1=2.5", "VALUE 2.5 of exit is not a whole number"),
        ("slow@3:1=0", "VALUE 0 of slow is not a factor from 1 to 1000"),
        ("oom@3:1=9999999", "of oom is not from 1 to 1000000 MiB"),
        ("kill@3:agent", "'spare' or 'coordinator'"),
        ("hang@3:spare", "'spare' or 'coordinator'"),
        ("kill@recovery:spare", "'spare' or 'coordinator'"),
        ("hang@recovery:1", "only kill"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_what_is_wanted(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse([spec], WORLD)
    assert str(caught.value).startswith(f"--inject {spec}")


@pytest.mark.parametrize("spec", ["slow@3:1=1.2.3", "slow@3:1=.", "kill@3:²"])
def test_a_number_that_is_none_is_refused_in_our_words(spec: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"--inject {spec}")):
        parse([spec], WORLD)


def injector(specs: list[str]) -> tuple[Injector, list[object]]:
    told: list[object] = []
    plan = parse(specs, WORLD)
    return Injector(plan, lambda *fact: told.append(fact), lambda: told.append("flip")), told


def test_a_fault_is_announced_and_happens_once_at_its_step_and_rank() -> None:
    found, told = injector(["raise@3:1", "corrupt@4:1"])
    for step, rank in ((2, 1), (3, 0), (4, 0)):
        found.at_step(step, rank)
    assert told == []
    with pytest.raises(InjectedError, match="raise@3:1"):
        found.at_step(3, 1)
    found.at_step(3, 1)
    found.at_step(4, 1)
    assert told == [(0, 3), (1, 4), "flip"]


def test_what_fired_in_another_process_does_not_fire_again() -> None:
    found, told = injector(["raise@3:1"])
    found.fired.add(0)
    found.at_step(3, 1)
    assert told == []


def test_a_fault_during_a_recovery_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(number))
    found, told = injector(["kill@recovery:1"])
    for step in range(5):
        found.at_step(step, 1)
    found.at_recovery(7, 0)
    assert told == killed == []
    found.at_recovery(7, 1)
    assert (told, killed) == ([(0, 7)], [9])


@pytest.mark.parametrize(("spec", "factor"), [("slow@3:1", 3.0), ("slow@3:1=5", 5.0)])
def test_slowness_is_the_value_or_three(spec: str, factor: float) -> None:
    found, _ = injector([spec])
    assert found.slowness == 1.0
    found.at_step(3, 1)
    assert found.slowness == factor


def test_every_kind_can_be_carried_out() -> None:
    assert set(inject._ACTIONS) == set(inject.KINDS)
    assert set(inject.KINDS) >= set(inject.VALUES)
