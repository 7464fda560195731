"""Each sample of a step is used exactly once, whatever the number of ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime.sampler import Sampler

sizes = st.integers(1, 30)


@settings(max_examples=60, deadline=None)
@given(size=sizes, batch=sizes, step=st.integers(0, 50), world_size=st.integers(1, 40))
def test_the_shares_of_all_ranks_are_the_batch(
    size: int, batch: int, step: int, world_size: int
) -> None:
    sampler = Sampler(size, batch)
    shares = [sampler.share(step, rank, world_size) for rank in range(world_size)]
    assert list(itertools.chain(*shares)) == sampler.share(step, 0, 1)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=40, deadline=None)
@given(size=sizes, batch=sizes, epochs=st.integers(1, 3))
def test_every_epoch_is_a_permutation_and_they_follow_without_a_gap(
    size: int, batch: int, epochs: int
) -> None:
    sampler = Sampler(size, batch, seed=3)
    stream: list[int] = []
    step = 0
    while len(stream) < size * epochs:
        stream += sampler.share(step, 0, 1)
        step += 1
    for epoch in range(epochs):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.integers(0, 40), min_size=1, max_size=10))
def test_a_share_depends_on_nothing_that_was_asked_before(steps: list[int]) -> None:
    used = Sampler(7, 5, seed=1)
    for step in steps:
        assert used.share(step, 1, 2) == Sampler(7, 5, seed=1).share(step, 1, 2)


def test_epochs_and_seeds_have_different_orders() -> None:
    sampler = Sampler(50, 50)
    orders = {tuple(sampler.share(step, 0, 1)) for step in range(4)}
    orders.add(tuple(Sampler(50, 50, seed=1).share(0, 0, 1)))
    assert len(orders) == 5


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    # What a job that was begun with an older keepstep goes on with.
    assert Sampler(8, 8, seed=9).share(3, 0, 1) == [7, 3, 2, 1, 5, 4, 0, 6]


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (1, 0), (-1, 1)])
def test_nothing_to_sample_is_refused(size: int, batch: int) -> None:
    with pytest.raises(ValueError, match="wanted 1 or more"):
        Sampler(size, batch)
