"""A snapshot is common when every rank took it and all agree; only then a job goes back to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import snapshots
from keepstep.runtime.protocol import SnapshotTaken
from keepstep.runtime.snapshots import SnapshotRegistry


def taken(
    wid: int, committed: int, digest: str = "d", *, rank: int | None = None, seconds: float = 0.01
) -> SnapshotTaken:
    rank = wid if rank is None else rank
    return SnapshotTaken(
        wid=wid, rank=rank, committed=committed, digest=digest, payload=rank == 0, seconds=seconds
    )


def registry(*counts: int, world_size: int = 2) -> SnapshotRegistry:
    found = SnapshotRegistry()
    for count in counts:
        for wid in range(world_size):
            found.note(taken(wid, count), f"host{wid}:1")
            found.judge(count, list(range(world_size)))
    return found


def test_a_snapshot_is_common_once_every_member_took_it() -> None:
    found = SnapshotRegistry()
    found.note(taken(0, 10), "a:1")
    found.judge(10, [0, 1])
    assert found.newest() is None
    found.note(taken(1, 10), "b:1")
    found.judge(10, [0, 1])
    newest = found.newest()
    assert newest is not None
    assert (newest.committed, newest.digest, newest.payload) == (10, "d", ("a:1",))
    assert newest.ranks == {0: ("a:1", 0), 1: ("b:1", 1)}


def test_a_snapshot_on_which_ranks_differ_is_never_common() -> None:
    found = SnapshotRegistry()
    found.note(taken(0, 10), "a:1")
    found.note(taken(1, 10, "flipped"), "b:1")
    assert found.judge(10, [0, 1]) == ()
    assert found.newest() is None


def test_a_snapshot_without_its_replicated_state_is_never_common() -> None:
    found = SnapshotRegistry()
    for wid in (1, 2):
        found.note(taken(wid, 10), "a:1")
    found.judge(10, [1, 2])
    assert found.newest() is None


def test_an_unfinished_snapshot_does_not_hide_the_one_before() -> None:
    found = registry(10)
    found.note(taken(0, 20), "host0:1")
    found.judge(20, [0, 1])
    newest = found.newest()
    assert newest is not None
    assert newest.committed == 10


def test_the_registry_keeps_at_least_one_and_no_more_than_workers_keep() -> None:
    found = registry(*range(10, 100, 10))
    assert len(found.to_rows()) <= snapshots.KEPT + 1
    newest = found.newest()
    assert newest is not None
    assert newest.committed == 90


def test_steps_that_are_repeated_take_their_snapshots_with_them() -> None:
    found = registry(10, 20)
    found.drop_after(15)
    newest = found.newest()
    assert newest is not None
    assert newest.committed == 10
    found.drop_after(10)
    assert found.newest() == newest


def test_a_lost_vault_is_replaced_by_its_mirror() -> None:
    found = registry(10)
    found.rehome("host1:1", "host0:1")
    newest = found.newest()
    assert newest is not None
    assert newest.ranks == {0: ("host0:1", 0), 1: ("host0:1", 1)}


@pytest.mark.parametrize(("lost", "mirror"), [("host0:1", "host1:1"), ("host1:1", None)])
def test_a_snapshot_that_lost_its_state_or_a_record_is_not_common_any_more(
    lost: str, mirror: str | None
) -> None:
    found = registry(10)
    found.rehome(lost, mirror)
    assert found.newest() is None


def test_the_interval_follows_the_measured_cost() -> None:
    found = registry(10, 20)  # four times 0.01 s
    assert found.every(median_step=0.0) is None
    wanted = found.every(median_step=0.01)
    assert wanted is not None
    assert wanted == found.interval == pytest.approx(0.01 / (snapshots.BUDGET * 0.01), abs=1)
    assert found.every(median_step=0.01) is None  # told once
    assert found.every(median_step=1e6) == snapshots.FIRST_INTERVAL


def test_the_cost_is_unknown_before_some_were_taken() -> None:
    assert registry(10).every(median_step=1e-9) is None


@settings(max_examples=50, deadline=None)
@given(
    notes=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0, 10, 20, 30]), st.sampled_from("xxxy")),
        max_size=14,
    ),
    members=st.sets(st.integers(0, 3), min_size=1),
)
def test_a_common_snapshot_has_one_digest_of_every_member_and_survives_a_restart(
    notes: list[tuple[int, int, str]], members: set[int]
) -> None:
    found, said = SnapshotRegistry(), dict[int, dict[int, str]]()
    for wid, count, digest in notes:
        said.setdefault(count, {})[wid] = digest
        found.note(taken(wid, count, digest), f"host{wid}:1")
        found.judge(count, sorted(members))
    newest = found.newest()
    if newest is not None:
        assert members <= set(said[newest.committed])
    again = SnapshotRegistry.from_rows(json.loads(json.dumps(found.to_rows())), found.interval)
    assert again.newest() == newest
    assert again.interval == found.interval
