"""Every format that PyTorch has written reads as the same dump."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.recorder import shape
from keepstep.recorder.build import Builder
from keepstep.recorder.model import (
    Backend,
    Direction,
    Dump,
    Entry,
    Frame,
    Group,
    GroupName,
    State,
    Status,
)
from keepstep.recorder.plain import RefusedError
from tests.recorder.writing import STACK, T0, VERSIONS, as_json, as_pickle, as_version, dump, row


def read(data: bytes) -> Dump:
    return Builder().dump(shape.table(data))


def codes(data: bytes) -> list[str]:
    return [code for code, _, _ in shape.table(data).notes]


def read_row(**changes: Any) -> Entry:
    (entry,) = read(as_pickle(dump([row(**changes)]))).entries
    return entry


def test_an_entry_of_the_newest_format_keeps_all_that_it_says() -> None:
    found = read(as_pickle(dump([row(3)])))
    (entry,) = found.entries
    assert (found.version, found.backend, found.library) == ("2.10", Backend.NCCL2, "")
    assert found.groups == (Group(GroupName("0", "default_pg"), (0, 1, 2, 3)),)
    assert found.status == {0: Status(1, None, 1)}
    assert (entry.record, entry.pg_id, entry.sequence, entry.op_id) == (3, 0, 4, 3)
    assert entry.group == GroupName("0", "default_pg")
    assert (entry.operation.name, entry.operation.input_sizes) == ("all_reduce", ((1024,),))
    assert entry.operation.output_dtypes == ("Float",)
    assert (entry.state, entry.retired, entry.is_p2p) == (State.COMPLETED, True, False)
    assert entry.created_ns == T0 + 3_000_000
    assert (entry.started_ns, entry.completed_ns) == (T0 + 3_000_700, T0 + 3_000_900)
    assert (entry.duration_ms, entry.timeout_ms) == (None, 600_000)
    assert entry.thread == "python3 140009006104896"
    assert entry.stack == tuple(Frame(*frame) for frame in STACK)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_reads_as_the_newest_without_what_it_did_not_record(version: str) -> None:
    newest = dump([row(0), row(1, state="scheduled", retired=False)])
    found = read(as_pickle(as_version(newest, version)))
    assert (found.version, found.backend) == (version, Backend.NCCL2)
    assert [e.sequence for e in found.entries] == [1, 2]
    assert [e.state for e in found.entries] == [State.COMPLETED, State.SCHEDULED]
    assert all(e.operation.input_sizes == ((1024,),) and len(e.stack) == 7 for e in found.entries)
    if version >= "2":
        expected = read(as_pickle(newest)).entries
        assert [replace(e, thread="") for e in found.entries] == [
            replace(e, thread="") for e in expected
        ]


@pytest.mark.parametrize(
    ("version", "key"), [("2.10", "comm_lib_version"), ("2.6", "nccl_version")]
)
def test_the_library_version_has_two_names(version: str, key: str) -> None:
    found = as_version(dump([row()], comm_lib_version="2.30.7"), version)
    assert key in found
    assert read(as_pickle(found)).library == "2.30.7"


def test_json_reads_as_the_pickle_without_stacks() -> None:
    newest = dump([row(0), row(1, state="scheduled", time_discovered_started_ns=None)])
    pickled, from_json = read(as_pickle(newest)), read(as_json(newest))
    assert from_json.status == pickled.status
    assert from_json.entries == tuple(replace(e, stack=()) for e in pickled.entries)
    assert from_json.entries[1].started_ns is None


def test_json_without_the_key_entries_is_an_empty_dump_and_noted() -> None:
    data = as_json(dump([]))
    assert b'"entries"' not in data
    assert read(data).entries == ()
    assert codes(data) == ["nothing-recorded"]


def test_microseconds_of_the_first_versions_become_nanoseconds() -> None:
    (old,) = as_version(dump([row()]), "0")
    old["time_created_us"] = old.pop("time_created_ns") // 1000
    (entry,) = read(as_pickle([old])).entries
    assert entry.created_ns == T0
    early = as_version(dump([row(time_created_ns=T0 // 1000)]), "1.0")
    assert read(as_pickle(early)).entries[0].created_ns == T0


@pytest.mark.parametrize("time", [8 * 10**15, 10**16, 10**17, 2**63 - 1])
def test_any_time_of_an_old_dump_stays_within_64_bits(time: int) -> None:
    early = as_version(dump([row(time_created_ns=time)]), "1.0")
    created = read(as_pickle(early)).entries[0].created_ns
    assert created == (time * 1000 if time < 10**16 else time)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ("[0, 1]", (0, 1)),
        ("0,1", (0, 1)),
        ("[3]", (3,)),
        ([0, 1], (0, 1)),
        ("[]", None),
        ("", None),
    ],
)
def test_ranks_of_a_group(ranks: object, expected: tuple[int, ...] | None) -> None:
    config = {"7": {"name": "7", "desc": "tp", "ranks": ranks}}
    assert read(as_pickle(dump([row()], pg_config=config))).groups[0].ranks == expected


@pytest.mark.parametrize(
    ("name", "backend", "operation"),
    [
        ("nccl:_all_gather_base", Backend.NCCL_LEGACY, "all_gather_base"),
        ("nccl2:all_reduce", Backend.NCCL2, "all_reduce"),
        ("nccl-lazy:barrier", Backend.NCCL_LAZY, "barrier"),
        ("gloo:all_gather", Backend.GLOO, "all_gather"),
        ("mpi:broadcast", Backend.OTHER, "broadcast"),
        ("hccl:all_reduce", Backend.OTHER, "all_reduce"),
        ("all_reduce", Backend.UNKNOWN, "all_reduce"),
    ],
)
def test_the_prefix_of_a_name_tells_the_backend(
    name: str, backend: Backend, operation: str
) -> None:
    found = read(as_pickle(dump([row(profiling_name=name)])))
    assert (found.backend, found.entries[0].operation.name) == (backend, operation)


@pytest.mark.parametrize(
    ("name", "direction", "own", "peer"),
    [
        ("nccl:send 1->2", Direction.SEND, 1, 2),
        ("nccl2:recv 3<-0", Direction.RECEIVE, 3, 0),
        ("nccl:recv 3<-?", Direction.RECEIVE, 3, None),
        ("ncclx:send", Direction.SEND, None, None),
        ("nccl:send 1<-2", None, None, None),
        ("nccl:all_reduce", None, None, None),
    ],
)
def test_point_to_point_names(
    name: str, direction: Direction | None, own: int | None, peer: int | None
) -> None:
    operation = read_row(profiling_name=name).operation
    assert (operation.direction, operation.own, operation.peer) == (direction, own, peer)


def test_a_point_to_point_entry_has_its_own_sequence() -> None:
    entry = read_row(profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=9)
    assert (entry.sequence, entry.is_p2p) == (9, True)


def test_before_is_p2p_was_written_the_name_tells() -> None:
    rows = [row(0, profiling_name="nccl:send 0->1"), row(1)]
    found = read(as_pickle(as_version(dump(rows), "1.2")))
    assert [entry.is_p2p for entry in found.entries] == [True, False]


def test_gloo_lists_groups_that_cannot_be_trusted() -> None:
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    data = as_pickle(dump([row(profiling_name="gloo:all_reduce")], pg_config=config))
    assert read(data).groups == (Group(GroupName("", ""), None),)
    assert codes(data) == ["group-ranks-unknown"]


def test_torchcomms_is_known_by_its_groups() -> None:
    rows = [row(profiling_name="ncclx:all_reduce", process_group=("world", "ncclx"))]
    assert read(as_pickle(dump(rows, pg_status={}))).backend is Backend.TORCHCOMMS


def test_keys_of_collectors_and_vendors_are_listed_not_used() -> None:
    found = dump([row()], health_check_results={"gpu": [1]}, hccl_comm_state={"a": {"b": "c"}})
    assert read(as_pickle(found)).extra == ("hccl_comm_state", "health_check_results")


def test_entries_come_in_the_order_of_their_numbers() -> None:
    found = read(as_pickle(dump([row(5), row(3), row(4)])))
    assert [entry.record for entry in found.entries] == [3, 4, 5]


def test_operations_of_two_backends_in_one_dump_are_noted() -> None:
    data = as_pickle(dump([row(0), row(1, profiling_name="gloo:all_reduce")]))
    assert read(data).backend is Backend.UNKNOWN
    assert codes(data) == ["mixed-backends"]


@pytest.mark.parametrize("version", ["2.11", "3.0", "", "two", "0.9"])
def test_an_unknown_version_is_read_and_noted(version: str) -> None:
    data = as_pickle(dump([row()], version=version))
    assert len(read(data).entries) == 1
    assert codes(data) == ["unknown-version"]


def test_a_dump_without_entries_is_known_as_legacy_by_its_library() -> None:
    assert read(as_pickle(dump([], comm_lib_version="2.30.7"))).backend is Backend.NCCL_LEGACY
    assert read(as_pickle(dump([]))).backend is Backend.UNKNOWN


def test_what_follows_the_end_of_a_dump_is_noted() -> None:
    data = as_pickle(dump([row()])) + b"more"
    assert len(read(data).entries) == 1
    assert codes(data) == ["trailing"]


def test_equal_values_of_two_dumps_are_one_object() -> None:
    builder = Builder()
    data = as_pickle(dump([row()]))
    one, other = (builder.dump(shape.table(data)).entries[0] for _ in range(2))
    assert one.operation is other.operation
    assert one.stack is other.stack
    assert one.group is other.group
    assert one.thread is other.thread


def test_entries_made_by_column_are_entries() -> None:
    (entry,) = read(as_pickle(dump([row()]))).entries
    again = replace(entry)
    assert again == entry
    assert hash(again) == hash(entry)
    assert repr(again) == repr(entry)


# A valid dump in each format reads back the same

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SMALL = st.integers(0, 1 << 40)
TIME = st.none() | st.integers(10**17, 10**19 // 2)
SHAPES = st.lists(st.lists(SMALL, max_size=3), max_size=3)
DTYPES = st.lists(st.sampled_from(["Float", "BFloat16", "Long"]), max_size=3)
NAMES = st.sampled_from(["all_reduce", "barrier", "send 0->1", "recv 1<-0", "recv 1<-?"])


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    with_stacks = draw(st.booleans())
    for number in range(draw(st.integers(0, 4))):
        name = draw(NAMES)
        state = draw(st.sampled_from(["scheduled", "started", "completed"]))
        entry = row(
            number,
            pg_id=draw(st.integers(0, 9)),
            process_group=(draw(TEXT), draw(TEXT)),
            collective_seq_id=draw(SMALL),
            p2p_seq_id=draw(SMALL),
            op_id=draw(SMALL),
            is_p2p=" " in name,
            profiling_name=f"nccl2:{name}",
            state=state,
            retired=draw(st.booleans()),
            input_sizes=draw(SHAPES),
            output_sizes=draw(SHAPES),
            input_dtypes=draw(DTYPES),
            output_dtypes=draw(DTYPES),
            time_created_ns=draw(st.integers(10**17, 10**19 // 2)),
            time_discovered_started_ns=draw(TIME),
            time_discovered_completed_ns=draw(TIME),
            timeout_ms=draw(SMALL),
            frames=[
                {"name": draw(TEXT), "filename": draw(TEXT), "line": draw(st.integers(-1, 10**6))}
                for _ in range(draw(st.integers(0, 3)) if with_stacks else 0)
            ],
        )
        if draw(st.booleans()):
            entry["duration_ms"] = draw(st.floats(0, 1e9))
        found.append(entry)
    return found


def said(entry: Entry) -> dict[str, Any]:
    """Return what an entry says, in the words of the file."""
    operation = entry.operation
    name = operation.name
    if operation.direction is not None:
        arrow = "->" if operation.direction is Direction.SEND else "<-"
        peer = "?" if operation.peer is None else operation.peer
        name = f"{operation.direction} {operation.own}{arrow}{peer}"
    return {
        "record_id": entry.record,
        "pg_id": entry.pg_id,
        "process_group": (entry.group.name, entry.group.description),
        "sequence": entry.sequence,
        "op_id": entry.op_id,
        "is_p2p": entry.is_p2p,
        "profiling_name": f"nccl2:{name}",
        "state": str(entry.state),
        "retired": entry.retired,
        "input_sizes": [list(sizes) for sizes in operation.input_sizes],
        "output_sizes": [list(sizes) for sizes in operation.output_sizes],
        "input_dtypes": list(operation.input_dtypes),
        "output_dtypes": list(operation.output_dtypes),
        "time_created_ns": entry.created_ns,
        "time_discovered_started_ns": entry.started_ns,
        "time_discovered_completed_ns": entry.completed_ns,
        "timeout_ms": entry.timeout_ms,
        "duration_ms": entry.duration_ms,
        "frames": [{"name": f.function, "filename": f.file, "line": f.line} for f in entry.stack],
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=rows(), version=st.sampled_from([*VERSIONS, "json"]))
def test_a_dump_reads_back_as_it_was_written(rows: list[dict[str, Any]], version: str) -> None:
    newest = dump(rows)
    written: Any = newest if version == "json" else as_version(newest, version)
    data = as_json(newest) if version == "json" else as_pickle(written)
    found = read(data)
    assert len(found.entries) == len(rows)
    kept = written if isinstance(written, list) else written["entries"]
    for number, (entry, source, original) in enumerate(zip(found.entries, kept, rows, strict=True)):
        sequence = original["p2p_seq_id" if original["is_p2p"] else "collective_seq_id"]
        told = said(entry)
        assert told["sequence"] == sequence
        for key, value in source.items():
            if key == "frames" and version == "json":
                assert entry.stack == ()
            elif key in told:
                assert told[key] == value, (number, key)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e12))
def test_a_duration_is_kept_exactly(duration: float) -> None:
    found = read_row(duration_ms=duration).duration_ms
    assert found is not None
    assert math.isclose(found, duration, rel_tol=0)


# Wrong values refuse the dump

WRONG: list[dict[str, Any]] = [
    {"record_id": "0"},
    {"record_id": -1},
    {"record_id": 1 << 63},
    {"record_id": 1.0},
    {"record_id": True},
    {"record_id": None},
    {"pg_id": [0]},
    {"process_group": None},
    {"process_group": ("a",)},
    {"process_group": ("a", "b", "c")},
    {"process_group": ("a", 1)},
    {"process_group": ({}, "b")},
    {"collective_seq_id": None},
    {"collective_seq_id": 10**400},
    {"p2p_seq_id": "1", "is_p2p": True},
    {"op_id": float("nan")},
    {"profiling_name": None},
    {"profiling_name": ["nccl:all_reduce"]},
    {"profiling_name": "nccl:\ud800"},
    {"profiling_name": "x" * 70_000},
    {"time_created_ns": "now"},
    {"time_created_ns": -5},
    {"time_discovered_completed_ns": 1.5},
    {"input_sizes": 3},
    {"input_sizes": "12"},
    {"input_sizes": [3]},
    {"input_sizes": [[3.0]]},
    {"input_sizes": [[-3]]},
    {"input_sizes": [[True]]},
    {"input_sizes": [[[3]]]},
    {"input_sizes": [["3"]]},
    {"input_sizes": {"a": [1]}},
    {"output_sizes": [[1 << 64]]},
    {"input_dtypes": "Float"},
    {"input_dtypes": [1]},
    {"input_dtypes": [["Float"]]},
    {"state": "finished"},
    {"state": None},
    {"state": ["completed"]},
    {"retired": 1},
    {"is_p2p": "no"},
    {"timeout_ms": "600"},
    {"duration_ms": float("nan")},
    {"duration_ms": float("inf")},
    {"duration_ms": -1.0},
    {"duration_ms": "1"},
    {"duration_ms": 10**400},
    {"thread_id": []},
    {"thread_name": b"python"},
    {"frames": {}},
    {"frames": "main"},
    {"frames": [1]},
    {"frames": [{"name": "f", "filename": "a.py"}]},
    {"frames": [{"name": "f", "filename": "a.py", "line": "1"}]},
    {"frames": [{"name": "f", "filename": "\udcff", "line": 1}]},
    {"frames": [{"name": {}, "filename": "a.py", "line": 1}]},
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: str(changes)[:50])
@pytest.mark.parametrize("position", [0, 1])
def test_a_wrong_value_anywhere_refuses_the_dump(changes: dict[str, Any], position: int) -> None:
    found = [row(0), row(1)]
    found[position].update(changes)
    with pytest.raises(RefusedError) as refused:
        shape.table(pickle.dumps(dump(found), protocol=4))
    assert refused.value.code in ("malformed", "too-large")
    assert refused.value.text.isascii()
    assert len(refused.value.text) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2.1},
        {"entries": {}},
        {"entries": [1]},
        {"pg_config": []},
        {"pg_config": {"0": "a"}},
        {"pg_config": {"0": {"ranks": "[0; 1]"}}},
        {"pg_config": {"0": {"ranks": [0, "1"]}}},
        {"pg_config": {"0": {"ranks": {}}}},
        {"pg_config": {None: {"ranks": "[0]"}}},
        {"pg_status": {"0": 1}},
        {"pg_status": {"zero": {}}},
        {"pg_status": {"0": {"last_enqueued_collective": 1.5}}},
        {"pg_status": {"0": {"last_enqueued_collective": "9" * 30}}},
        {"pg_status": {"0": {"last_enqueued_collective": -2}}},
        {"comm_lib_version": 2},
        {7: 8},
        {"\ud800": 1},
    ],
    ids=lambda changes: str(changes).encode("ascii", "replace").decode()[:50],
)
def test_a_wrong_value_at_the_top_refuses_the_dump(changes: dict[Any, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        shape.table(pickle.dumps(dump([row()]) | changes, protocol=4))
    assert refused.value.code == "malformed"
