"""What is captured of a generator is what it would say now, whatever was done with it before."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from keepstep.runtime import generators

USES: list[Callable[[], Any]] = [
    random.random,
    lambda: random.gauss(0, 1),  # makes two numbers and keeps one ...
    lambda: random.gauss(0, 1),  # ... which this one takes, without a new word
    lambda: random.seed(4),
    lambda: random.setstate(random.Random(5).getstate()),
    lambda: numpy.random.rand(),
    lambda: numpy.random.randn(),
    lambda: numpy.random.randn(),
    lambda: numpy.random.binomial(10, 0.3),
    lambda: numpy.random.seed(3),
    lambda: torch.rand(3),
    lambda: torch.randn(1),  # fewer than 16 numbers: made in pairs, and one is kept
    lambda: torch.randn(1),
    lambda: torch.randn(1, dtype=torch.float64),
    lambda: torch.randn(1, dtype=torch.float64),
    lambda: torch.rand(624),  # as many words as there are: their place is what it was
    lambda: torch.randperm(9),
    lambda: torch.nn.functional.dropout(torch.ones(9)),
    lambda: torch.set_rng_state(torch.Generator().manual_seed(6).get_state()),
    lambda: torch.manual_seed(8),
    lambda: torch.seed(),
]


mtrand: Any = numpy.random  # some of its functions have no stubs


def public() -> list[Any]:
    """The states as their own functions tell them."""
    name, keys, *rest = mtrand.get_state()
    return [random.getstate(), name, keys.tobytes(), rest, torch.get_rng_state().tolist()]


def test_what_nobody_used_is_captured_as_the_same_object() -> None:
    first = generators.capture()
    assert generators.capture() is first
    torch.rand(1)
    changed = generators.capture()
    assert changed is not first
    assert changed["torch"] != first["torch"]


@pytest.mark.parametrize("number", range(len(USES)))
def test_a_restore_gives_the_state_of_the_capture_after_any_use(number: int) -> None:
    for use in USES[number:] + USES[:number]:
        use()
        wanted = public()
        captured = generators.capture()
        for other in USES:
            other()
        generators.restore(captured)
        assert public() == wanted
        assert generators.capture() == captured


def test_every_generator_of_this_process_can_be_watched() -> None:
    """Not a need, but without it each commit costs a tenth of a millisecond more."""
    generators.capture()
    watched = [generators._python, generators._torch, generators._numpy]
    assert [each is not None and each.is_watchable for each in watched] == [True] * 3


@pytest.mark.parametrize("number", range(len(USES)))
def test_any_use_is_seen_in_a_generator_that_nobody_used_for_a_while(number: int) -> None:
    first = generators.capture()
    assert generators.capture() is first
    before = public()
    USES[number]()
    assert (generators.capture() == first) == (public() == before)


def test_memory_that_does_not_look_as_expected_is_not_relied_upon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = generators._Watched(None, [(id(USES), 16)], generators._read_torch)
    assert not watched.is_watchable
    part = watched.part
    assert watched.refresh() is not part  # it cannot know better
    monkeypatch.setattr(generators, "_torch", watched)
    one = generators.capture()
    assert generators.capture() is one
    torch.rand(1)
    assert generators.capture() != one


def test_a_cached_normal_number_that_comes_back_is_seen() -> None:
    """The words are the same with and without it."""
    numpy.random.seed(1)
    numpy.random.randn()
    with_it = mtrand.get_state()
    numpy.random.randn()
    without = generators.capture()["numpy"]
    numpy.random.set_state(with_it)
    assert generators.capture()["numpy"] != without


def test_an_exchanged_bit_generator_is_followed() -> None:
    before = mtrand.get_bit_generator()
    mtrand.set_bit_generator(numpy.random.MT19937(77))
    try:
        one = generators.capture()["numpy"]
        numpy.random.rand()
        assert generators.capture()["numpy"] != one
        assert generators.capture()["numpy"][1] == mtrand.get_state()[1].tobytes()
    finally:
        mtrand.set_bit_generator(before)


def test_what_was_not_used_is_not_read_again() -> None:
    first = generators.capture()
    torch.rand(1)
    second = generators.capture()
    assert second["python"] is first["python"]
    assert second["numpy"] is first["numpy"]
    assert second["torch"] != first["torch"]


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"])
def test_another_bit_generator_is_carried_into_a_process_that_has_the_usual_one(name: str) -> None:
    before = mtrand.get_bit_generator()
    mtrand.set_bit_generator(getattr(numpy.random, name)(7))
    try:
        numpy.random.randn()
        captured = json.loads(json.dumps(generators.capture()["numpy"][0]))
        words = generators.capture()["numpy"][1]
        wanted = [numpy.random.randn() for _ in range(9)] + [numpy.random.randint(1000)]
        assert generators.capture()["numpy"] != (captured, words)
        mtrand.set_bit_generator(numpy.random.MT19937(1))
        generators.restore({**generators.capture(), "numpy": (captured, words)})
        assert [numpy.random.randn() for _ in range(9)] + [numpy.random.randint(1000)] == wanted
    finally:
        mtrand.set_bit_generator(before)
