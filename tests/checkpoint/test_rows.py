"""Comparing tensors that are sharded differently: the runs that two shards share."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint.compare import _common_rows, _in_rows
from keepstep.checkpoint.contents import Slice
from keepstep.checkpoint.stored import Layout


@st.composite
def shards(draw: st.DrawFn) -> tuple[Slice, Slice]:
    shape = draw(st.lists(st.integers(1, 4), max_size=4))

    def shard() -> Slice:
        begin = tuple(draw(st.integers(0, n - 1)) for n in shape)
        sizes = tuple(draw(st.integers(1, n - b)) for n, b in zip(shape, begin, strict=True))
        return Slice("t", "f", 0, 0, begin, sizes, False)

    return shard(), shard()


def places(shard: Slice) -> dict[tuple[int, ...], int]:
    """Return where in the shard each element of the tensor is, the slow way."""
    assert shard.begin is not None
    assert shard.sizes is not None
    inside = product(*map(range, shard.sizes))
    begin = shard.begin
    return {
        tuple(i + b for i, b in zip(index, begin, strict=True)): number
        for number, index in enumerate(inside)
    }


@given(shards())
def test_the_runs_are_the_common_elements_each_once(pair: tuple[Slice, Slice]) -> None:
    one, other = map(places, pair)
    wanted = sorted((one[place], other[place]) for place in one.keys() & other.keys())
    found = sorted(
        (mine + n, theirs + n) for mine, theirs, count in _common_rows(*pair) for n in range(count)
    )
    assert found == wanted


@given(st.permutations([0, 1, 2]), st.tuples(*[st.integers(1, 4)] * 3), st.sampled_from([1, 2, 4]))
def test_elements_stored_in_another_order_are_put_in_rows(
    order: list[int], sizes: tuple[int, int, int], itemsize: int
) -> None:
    strides, step = [0, 0, 0], 1
    for dimension in order:
        strides[dimension] = step
        step *= sizes[dimension]
    data = b"".join(n.to_bytes(itemsize, "little") for n in range(step))
    found = _in_rows(memoryview(data), Layout(0, sizes, tuple(strides)), itemsize)
    wanted = b"".join(
        sum(i * s for i, s in zip(index, strides, strict=True)).to_bytes(itemsize, "little")
        for index in product(*map(range, sizes))
    )
    assert found == wanted
