"""What a worker left is read whole or not at all, and only under the known names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import vault
from keepstep.runtime.vault import RankRecord


def record(count: int, is_commit: bool, data: bytes = b"d", generation: int = 0) -> RankRecord:
    return RankRecord(count=count, is_commit=is_commit, data=data, generation=generation)


def slot_file(folder: Path, wid: int) -> Path:
    """The only slot file of ``wid`` that holds a record."""
    slots = [folder / f"rank-{wid}.{slot}" for slot in range(vault.SLOTS)]
    (path,) = [path for path in slots if path.stat().st_size]
    return path


def test_records_are_read_back_oldest_first(tmp_path: Path) -> None:
    writer = vault.RankRecordWriter(tmp_path, 3)
    writer.write(4, is_commit=True, state=b"four")
    writer.write(5, is_commit=False, state=b"five")
    writer.write(5, is_commit=True, state=b"five")
    assert vault.read_records(tmp_path, 3) == [
        record(4, True, b"four"),
        record(5, False, b"five"),
        record(5, True, b"five"),
    ]


def test_an_entry_that_was_confirmed_counts_as_the_commit_too(tmp_path: Path) -> None:
    writer = vault.RankRecordWriter(tmp_path, 3)
    for count in (4, 5, 6):
        writer.write(count, is_commit=False, state=b"%d" % count)
        assert vault.known_counts(vault.read_records(tmp_path, 3)) == (
            (count - 1, count) if count > 4 else (-1, -1)
        )
        writer.confirm(count)
        assert record(count, True, b"%d" % count) in vault.read_records(tmp_path, 3)
        assert vault.known_counts(vault.read_records(tmp_path, 3)) == (count, count)
    assert [r.count for r in vault.read_records(tmp_path, 3) if r.is_commit] == [4, 5, 6]
    writer.write(7, is_commit=False, state=b"7")  # over the oldest: the last two commits stay
    assert [r.count for r in vault.read_records(tmp_path, 3) if r.is_commit] == [5, 6]


def test_an_entry_that_holds_no_more_is_forgotten(tmp_path: Path) -> None:
    writer, state = vault.RankRecordWriter(tmp_path, 3), b"s"
    writer.write(5, is_commit=True, state=state)
    writer.write(6, is_commit=False, state=state)
    writer.forget_entry(6)
    assert vault.read_records(tmp_path, 3) == [record(5, True, state)]
    writer.write(6, is_commit=False, state=state)
    assert vault.read_records(tmp_path, 3)[1:] == [record(6, False, state)]


def test_a_confirmation_is_of_no_other_count(tmp_path: Path) -> None:
    writer = vault.RankRecordWriter(tmp_path, 3)
    writer.write(4, is_commit=False, state=b"4")
    writer.confirm(4)
    writer.write(7, is_commit=False, state=b"7")
    assert vault.read_records(tmp_path, 3) == [record(7, False, b"7")]


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\0" * 25])
def test_a_damaged_file_of_confirmations_confirms_nothing(tmp_path: Path, content: bytes) -> None:
    writer = vault.RankRecordWriter(tmp_path, 3)
    writer.write(0, is_commit=False, state=b"0")
    writer.confirm(0)
    (tmp_path / f"rank-3.{vault.SLOTS}").write_bytes(content)
    assert vault.read_records(tmp_path, 3) == [record(0, False, b"0")]


@pytest.mark.parametrize("back", [0, 1])
def test_what_was_left_before_a_generation_began_counts_no_more(tmp_path: Path, back: int) -> None:
    writer = vault.RankRecordWriter(tmp_path, 3)
    for count in (4, 5, 6):
        writer.write(count, is_commit=False, state=b"old")
        writer.confirm(count)
        writer.write(count, is_commit=True, state=b"old")
    writer.begin(2, 6 - back, state=b"new")
    assert vault.read_records(tmp_path, 3) == [record(6 - back, True, b"new", 2)]
    writer.write(7 - back, is_commit=False, state=b"new")
    assert vault.read_records(tmp_path, 3)[1:] == [record(7 - back, False, b"new", 2)]


def test_only_the_last_steps_are_kept(tmp_path: Path) -> None:
    writer = vault.RankRecordWriter(tmp_path, 0)
    for count in range(7):
        for is_commit in (False, True):
            writer.write(count, is_commit=is_commit, state=b"%d" % count)
    found = [(r.count, r.is_commit) for r in vault.read_records(tmp_path, 0)]
    assert found == [(4, False), (5, False), (5, True), (6, False), (6, True)]


def test_a_worker_that_left_nothing_has_no_records(tmp_path: Path) -> None:
    assert vault.read_records(tmp_path, 9) == []
    vault.RankRecordWriter(tmp_path, 9)
    assert vault.read_records(tmp_path, 9) == []


def test_a_record_cut_short_anywhere_is_no_record(tmp_path: Path) -> None:
    vault.RankRecordWriter(tmp_path, 1).write(8, is_commit=True, state=b"the state of a rank")
    path = slot_file(tmp_path, 1)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert vault.read_records(tmp_path, 1) == []
    path.write_bytes(whole)
    assert vault.read_records(tmp_path, 1) == [record(8, True, b"the state of a rank")]


def test_a_state_that_is_still_there_is_not_written_again(tmp_path: Path) -> None:
    writer, state = vault.RankRecordWriter(tmp_path, 1), b"s" * 5000
    for number, runs in enumerate((1, 2, 30, 2)):  # notes that need another place for the state too
        notes = vault.pack_notes([[1, 0, 4, 0, 2, number]] * runs)
        writer.write(8 + 2 * number, is_commit=True, state=state, notes=notes)
        (found,) = vault.read_records(tmp_path, 1)
        assert found == record(8 + 2 * number, True, notes + state)
    path = slot_file(tmp_path, 1)
    writer.write(16, is_commit=True, state=state, notes=notes)
    path.write_bytes(path.read_bytes()[:600] + b"x" * 4000 + path.read_bytes()[4600:])
    assert vault.read_records(tmp_path, 1) == []
    writer.write(18, is_commit=True, state=state, notes=notes)
    assert vault.read_records(tmp_path, 1) == []  # it was left as it lay there
    writer.write(20, is_commit=True, state=bytes(bytearray(state)), notes=notes)
    assert vault.read_records(tmp_path, 1) == [record(20, True, notes + state)]


@pytest.mark.parametrize(
    "new_data", [b"new", b"as long as the old", b"longer than the old one was"]
)
def test_a_write_cut_short_over_an_older_record_gives_the_old_the_new_or_none(
    tmp_path: Path, new_data: bytes
) -> None:
    old, new = record(8, True, b"as long as the old"), record(8 + (1 << 16), True, new_data)
    writer = vault.RankRecordWriter(tmp_path, 1)
    writer.write(old.count, is_commit=True, state=old.data)
    path = slot_file(tmp_path, 1)
    before = path.read_bytes()
    writer.write(new.count, is_commit=True, state=new.data)
    after = path.read_bytes()
    for length in range(len(after) + 1):
        path.write_bytes(after[:length] + before[length:])
        assert vault.read_records(tmp_path, 1) in ([], [old], [new])


def test_a_flipped_bit_never_gives_another_record(tmp_path: Path) -> None:
    written = record(8, True, b"the state")
    vault.RankRecordWriter(tmp_path, 1).write(8, is_commit=True, state=written.data)
    path = slot_file(tmp_path, 1)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            raw = bytearray(whole)
            raw[place] ^= 1 << bit
            path.write_bytes(bytes(raw))
            assert vault.read_records(tmp_path, 1) in ([], [written])


# --- which counts are known -----------------------------------------------------------------------


def test_nothing_is_known_without_a_commit() -> None:
    assert vault.known_counts([]) == (-1, -1)
    assert vault.known_counts([record(3, False)]) == (-1, -1)


def test_the_newest_commit_is_known() -> None:
    assert vault.known_counts([record(3, True), record(4, True)]) == (4, 4)


def test_an_entry_stands_in_when_entry_and_commit_of_the_step_before_were_equal() -> None:
    records = [record(4, False, b"a"), record(4, True, b"a"), record(5, False, b"b")]
    assert vault.known_counts(records) == (4, 5)
    assert vault.find_record(records, 5) == b"b"


def test_an_entry_does_not_stand_in_when_something_changed_after_the_last_collective() -> None:
    records = [record(4, False, b"before"), record(4, True, b"after"), record(5, False, b"b")]
    assert vault.known_counts(records) == (4, 4)


def test_an_entry_does_not_stand_in_when_the_step_before_left_none() -> None:
    assert vault.known_counts([record(4, True), record(5, False)]) == (4, 4)


def test_an_entry_of_a_later_step_does_not_stand_in() -> None:
    records = [record(4, False), record(4, True), record(6, False)]
    assert vault.known_counts(records) == (4, 4)


@settings(max_examples=50, deadline=None)
@given(
    written=st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from([b"x", b"y"])), max_size=6
    )
)
def test_a_known_count_has_a_record_and_is_at_most_one_ahead(
    written: list[tuple[int, bool, bytes]],
) -> None:
    records = [record(*row) for row in {row[:2]: row for row in written}.values()]
    committed, entry = vault.known_counts(records)
    assert entry in (committed, committed + 1) if committed >= 0 else entry == -1
    for count in {committed, entry} - {-1}:
        assert vault.find_record(records, count) is not None


def test_a_commit_is_preferred_to_an_entry() -> None:
    assert vault.find_record([record(5, False, b"e"), record(5, True, b"c")], 5) == b"c"
    assert vault.find_record([record(5, True, b"c"), record(5, False, b"e")], 5) == b"c"
    assert vault.find_record([record(5, True)], 6) is None


def test_sample_notes_and_state_are_told_apart_whatever_the_state_contains(tmp_path: Path) -> None:
    state = b'{"x": "\\n"}\n\n[1]\n'
    notes = vault.pack_notes([[1, 0, 4, 0, 2, 8]])
    assert vault.state_in(notes + state) == state
    vault.RankRecordWriter(tmp_path, 7).write(1, is_commit=True, state=state, notes=notes)
    assert vault.read_records(tmp_path, 7) == [record(1, True, notes + state)]
    assert vault.sample_rows(tmp_path) == [[7, 0, 1, 0, 4, 0, 2, 8]]


# --- blobs ----------------------------------------------------------------------------------------


def test_a_blob_is_read_back(tmp_path: Path) -> None:
    vault.write_blob(tmp_path, "snapshot/5/payload", [b"a", memoryview(b"bc")])
    vault.write_blob(tmp_path, "snapshot/5/rank/0", [b"r"])
    assert vault.read_blob(tmp_path, "snapshot/5/payload") == b"abc"
    assert vault.read_blob(tmp_path, "snapshot/5/rank/0") == b"r"
    assert vault.read_blob(tmp_path, "snapshot/6/payload") is None


def test_a_rank_record_is_read_by_its_name(tmp_path: Path) -> None:
    vault.RankRecordWriter(tmp_path, 2).write(9, is_commit=True, state=b"nine")
    assert vault.read_blob(tmp_path, "rank/2/9") == b"nine"
    assert vault.read_blob(tmp_path, "rank/2/8") is None
    assert vault.read_blob(tmp_path, "rank/3/9") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../secret",
        "snapshot/../secret",
        "snapshot/1/../../secret",
        "snapshot/1/rank/../../secret",
        "snapshot/1/payload/../secret",
        "snapshot/1/payload\n",
        "snapshot/1/payload/",
        "snapshot/-1/payload",
        "rank/0",
        "rank/0/1/2",
        "rank/../1",
        "mirror/..",
        "progress-0",
        "secret",
    ],
)
def test_a_name_outside_the_patterns_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "vault"
    folder.mkdir()
    for place in (tmp_path / "secret", folder / "secret", folder / "progress-0"):
        place.write_bytes(b"not for others")
    vault.write_blob(folder, "snapshot/1/payload", [b"payload"])
    assert vault.read_blob(folder, name) is None


@settings(max_examples=60, deadline=None)
@given(name=st.text(alphabet="rank/snposmi.0123-\\\0\n", max_size=20))
def test_no_name_leads_out_of_the_vault(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    found = vault.read_blob(tmp_path_factory.getbasetemp() / "no-vault", name)
    assert found in (None, b"")  # b"": a mirror of a worker that left nothing


def test_a_write_that_fails_leaves_the_old_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.write_blob(tmp_path, "snapshot/5/payload", [b"old"])

    def fail(self: Path, target: Path) -> None:
        assert self.read_bytes() == b"new"
        assert target.read_bytes() == b"old"
        raise OSError("killed before the rename")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="killed"):
            vault.write_blob(tmp_path, "snapshot/5/payload", [b"new"])
    assert vault.read_blob(tmp_path, "snapshot/5/payload") == b"old"


def test_a_snapshot_is_kept_whoever_took_it_and_one_of_an_undone_step_is_not(
    tmp_path: Path,
) -> None:
    for count in (10, 20, 30):
        vault.write_blob(tmp_path, f"snapshot/{count}/payload", [b"p"])
    vault.drop_snapshots(tmp_path, newest=20, kept=3)
    left = [
        count for count in (10, 20, 30) if vault.read_blob(tmp_path, f"snapshot/{count}/payload")
    ]
    assert left == [10, 20]


def test_snapshots_that_are_not_kept_are_removed_and_records_stay(tmp_path: Path) -> None:
    for count in (10, 20, 30):
        vault.write_blob(tmp_path, f"snapshot/{count}/payload", [b"p"])
        vault.write_blob(tmp_path, f"snapshot/{count}/rank/0", [b"r"])
    vault.RankRecordWriter(tmp_path, 0).write(30, is_commit=True, state=b"d")
    vault.drop_snapshots(tmp_path, newest=30, kept=2)
    assert vault.read_blob(tmp_path, "snapshot/10/payload") is None
    assert vault.read_blob(tmp_path, "snapshot/10/rank/0") is None
    assert vault.read_blob(tmp_path, "snapshot/20/rank/0") == b"r"
    assert vault.read_blob(tmp_path, "rank/0/30") == b"d"


# --- mirrors --------------------------------------------------------------------------------------


def test_a_mirror_gives_the_same_records_and_the_newest_snapshot_record(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    writer = vault.RankRecordWriter(home, 12)
    for count in (4, 5):
        writer.write(count, is_commit=False, state=b"%d" % count)
        writer.write(count, is_commit=True, state=b"%d" % count)
    writer.write(6, is_commit=False, state=b"6")
    writer.confirm(6)
    for count in (9, 10):
        vault.write_blob(home, f"snapshot/{count}/rank/12", [b"at %d" % count])
    packed = vault.read_blob(home, "mirror/12")
    assert packed is not None
    vault.store_mirror(away, 12, packed)
    assert vault.read_records(away, 12) == vault.read_records(home, 12)
    assert vault.read_blob(away, "snapshot/10/rank/12") == b"at 10"
    assert vault.read_blob(away, "snapshot/9/rank/12") is None


def test_a_mirror_that_holds_some_records_of_the_generation_before_gives_none_of_them(
    tmp_path: Path,
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    writer = vault.RankRecordWriter(home, 1)
    writer.begin(1, 4, state=b"4")
    writer.write(5, is_commit=False, state=b"5")
    before = vault.read_blob(home, "mirror/1")
    writer.begin(2, 4, state=b"4 again")
    after = vault.read_blob(home, "mirror/1")
    assert before is not None
    assert after is not None
    vault.store_mirror(away, 1, before)
    assert vault.newest_generation(vault.read_records(away, 1)) == 1
    for length in range(len(after)):
        vault.store_mirror(away, 1, after[:length])
        found = vault.read_records(away, 1)
        assert len({each.generation for each in found}) <= 1
    assert vault.newest_generation(found) == 2


def test_a_mirror_cut_short_anywhere_never_gives_a_wrong_record(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    writer = vault.RankRecordWriter(home, 1)
    for count in (4, 5):
        writer.write(count, is_commit=True, state=b"state %d" % count)
    writer.write(6, is_commit=False, state=b"state 6")
    writer.confirm(6)
    whole = vault.read_records(home, 1)
    packed = vault.read_blob(home, "mirror/1")
    assert packed is not None
    for length in range(0, len(packed), 3):
        away = tmp_path / str(length)
        away.mkdir()
        vault.store_mirror(away, 1, packed[:length])
        assert all(found in whole for found in vault.read_records(away, 1))
    assert os.listdir(tmp_path / "0") == []
