"""Numbers that the limited process hands over arrive as they were, and only numbers do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint.columns import pack, pack_sizes, unpack, unpack_sizes
from keepstep.checkpoint.errors import UnsafeMetadataError

SIZES = st.lists(st.integers(0, (1 << 63) - 1), max_size=5).map(tuple)


@given(st.lists(st.integers(0, (1 << 63) - 1)))
def test_numbers_arrive_as_they_were(numbers: list[int]) -> None:
    assert list(unpack(json.loads(json.dumps(pack(numbers))))) == numbers


@given(st.lists(st.none() | SIZES))
def test_sizes_arrive_as_they_were(values: list[tuple[int, ...] | None]) -> None:
    assert list(unpack_sizes(json.loads(json.dumps(pack_sizes(values))))) == values


@pytest.mark.parametrize(
    "value",
    [(-1,), (True,), (1.0,), (None,), ((1,),), [1], "1", 1, False, {}, (1 << 63,), (1 << 70, 2)],
)
def test_what_is_no_tuple_of_sizes_is_refused(value: Any) -> None:
    with pytest.raises(UnsafeMetadataError):
        pack_sizes([(1,), value])
