"""Entries kept as columns say the same as entries that were made, one by one or all at once."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.recorder import limits, shape
from keepstep.recorder.build import Builder
from keepstep.recorder.entries import Entries, called_ns, newest_ns, outline
from keepstep.recorder.model import Entry
from keepstep.recorder.plain import RefusedError
from keepstep.recorder.table import pack, unpack, value
from tests.recorder.writing import T0, as_json, as_pickle, dump, row

ROWS = [
    row(7, state="scheduled", retired=False, time_discovered_completed_ns=None),
    row(5, profiling_name="nccl2:send 0->1", is_p2p=True, p2p_seq_id=3, duration_ms=1.5),
    row(6, input_sizes=[[2, 3], []], frames=[]),
]
LARGEST = (1 << 63) - 1
NUMBERS = st.lists(st.integers(-1, LARGEST)) | st.lists(st.integers(0, 300))


def read(rows: list[dict[str, Any]]) -> Entries:
    found = Builder().dump(shape.table(as_pickle(dump(rows)))).entries
    assert isinstance(found, Entries)
    return found


@given(NUMBERS | st.integers(-1, LARGEST - 9).map(lambda first: list(range(first, first + 9))))
def test_a_column_holds_what_was_put_into_it(numbers: list[int]) -> None:
    column = pack(array("q", numbers))
    assert list(unpack(column, len(numbers))) == numbers
    assert [value(column, at) for at in range(len(numbers))] == numbers


@pytest.mark.parametrize(
    ("numbers", "size"), [(range(50_000, 52_000), 0), ([9] * 2000, 0), ([5, 9, 7, 260], 4)]
)
def test_numbers_of_one_dump_take_little_room(numbers: list[int], size: int) -> None:
    assert len(pack(array("q", numbers))[2]) == size


def test_an_entry_is_the_same_alone_and_among_all() -> None:
    alone, among = read(ROWS), read(ROWS)
    assert [alone[at] for at in (0, 1, 2)] == list(among)
    assert (alone[-1], alone[1:]) == (among[2], (among[1], among[2]))
    assert [entry.duration_ms for entry in among] == [1.5, None, None]
    with pytest.raises(IndexError):
        read(ROWS)[3]


def test_entries_compare_as_a_tuple_does() -> None:
    found = read(ROWS)
    assert found == tuple(found) == read(ROWS)
    assert found != tuple(found)[:2]
    assert hash(found) == hash(tuple(found))
    assert repr(found) == repr(tuple(found))


@pytest.mark.parametrize("make", [lambda found: found, tuple])
def test_an_outline_says_what_the_entries_say(make: Any) -> None:
    found = read([*ROWS, row(8), row(9)])
    seen = outline(make(found))
    assert [seen.calls[number].operation for number in seen.numbers] == [e.operation for e in found]
    assert [seen.calls[number].state for number in seen.numbers] == [e.state for e in found]
    assert list(seen.records) == [entry.record for entry in found]
    assert seen.numbers[-1] == seen.numbers[-2]


@pytest.mark.parametrize("make", [lambda found: found, tuple])
def test_times_are_known_without_making_entries(make: Any) -> None:
    found = read([row(0), row(4), row(2, time_created_ns=None)])
    assert list(called_ns(make(found))) == [T0, T0 + 4_000_000]
    assert newest_ns(make(found)) == T0 + 4_000_000
    assert newest_ns(make(read([]))) == 0


def without_stack(entries: Entries) -> list[Entry]:
    return [replace(entry, stack=()) for entry in entries]


def test_entries_with_different_keys_are_read_one_by_one() -> None:
    bare = {key: value for key, value in row(1).items() if key not in ("thread_name", "timeout_ms")}
    first, second = read([row(0), bare])
    assert (first.timeout_ms, second.timeout_ms) == (600_000, None)
    assert (first.thread, second.thread) == ("python3 140009006104896", "140009006104896")


def test_frames_that_a_file_repeats_or_refers_to_are_one_stack() -> None:
    once = Builder().dump(shape.table(as_pickle(dump([row(0), row(1)])))).entries
    assert once[0].stack is once[1].stack
    from_json = Builder().dump(shape.table(as_json(dump([row(0), row(1)])))).entries
    assert isinstance(from_json, Entries)
    assert from_json == tuple(without_stack(read([row(0), row(1)])))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"pg_id": 1}, {"pg_id": True}),
        ({"retired": True}, {"retired": 1}),
        ({"is_p2p": False}, {"is_p2p": 0}),
        ({"timeout_ms": 1}, {"timeout_ms": 1.0}),
        ({"input_sizes": [[1]]}, {"input_sizes": [[True]]}),
        ({"input_sizes": [[1]]}, {"input_sizes": [[1.0]]}),
        ({"record_id": 1}, {"record_id": True}),
    ],
)
def test_a_value_that_equals_a_good_one_but_is_of_another_type_is_refused(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    with pytest.raises(RefusedError, match="wanted"):
        read([row(0, **first), row(1, **second)])


def test_an_operation_of_too_many_tensors_is_refused() -> None:
    shapes: list[list[int]] = [[]] * (limits.OPERATION_VALUES + 1)
    with pytest.raises(RefusedError, match="more than") as refused:
        read([row(0, input_sizes=shapes)])
    assert refused.value.code == "too-large"
