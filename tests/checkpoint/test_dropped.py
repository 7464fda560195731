"""The proof that nothing but the last items of states was dropped, against files where more was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.contents import ask
from keepstep.checkpoint.downgrade import convert
from keepstep.checkpoint.dropped import count_dropped
from keepstep.checkpoint.errors import CannotConvertError, UnsafeMetadataError
from keepstep.checkpoint.opcodes import opcodes
from keepstep.checkpoint.rewrite import rewrite, unframed
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import DATA, write_checkpoint

CASES = ["plain", "noncontig", "objects", "dtensor2", "zero_d", "nested", "sharded_tensor"]
STATE_ENDS = b"0t\x94b"


def old_and_new(case: str = "noncontig") -> tuple[bytes, bytes]:
    before = unframed((DATA / "torch-2.15.0" / case / ".metadata").read_bytes())
    return before, rewrite(before, "2.14").data


@pytest.mark.parametrize("case", CASES)
def test_what_the_rewriting_makes_is_proven(case: str) -> None:
    before, after = old_and_new(case)
    assert count_dropped(before, after) == len(after) - len(before) > 0
    assert count_dropped(after, after) == 0


def test_it_agrees_with_reading_both_files(tmp_path: Path) -> None:
    for number, whole in enumerate((*old_and_new(), *old_and_new("nested"))):
        (tmp_path / str(number)).write_bytes(whole)
    found = []
    for number in range(4):
        with (tmp_path / str(number)).open("rb") as file:
            found.append(ask(file, "digest")["digest"])
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize("place", range(0, 1300, 7))
def test_one_changed_byte_is_found(place: int) -> None:
    before, after = old_and_new()
    changed = after[:place] + bytes([after[place] ^ 1]) + after[place + 1 :]
    with pytest.raises((CannotConvertError, UnsafeMetadataError)):
        assert count_dropped(before, changed) < 0


def test_a_pop_anywhere_else_is_found() -> None:
    before, _ = old_and_new()
    ends = {opcode.start for opcode in opcodes(before, 2)} | {len(before)}
    for place in sorted(ends - {2}):
        changed = before[:place] + b"0" + before[place:]
        if changed[place : place + 4] == STATE_ENDS:
            assert count_dropped(before, changed) == 1
            continue
        with pytest.raises((CannotConvertError, UnsafeMetadataError)):
            count_dropped(before, changed)


def test_a_pop_within_a_text_or_a_number_is_no_pop() -> None:
    before, _ = old_and_new()
    for opcode in opcodes(before, 2):
        for place in range(opcode.start + 1, opcode.end):
            with pytest.raises((CannotConvertError, UnsafeMetadataError)):
                count_dropped(before, before[:place] + b"0" + before[place:])


def test_bytes_that_are_left_over_or_missing_are_found() -> None:
    before, after = old_and_new()
    for old, new in ((before + b".", after), (before, after + b"."), (before[:-1], after)):
        with pytest.raises(CannotConvertError):
            count_dropped(old, new)


def test_a_name_of_more_than_64_kb_is_no_obstacle() -> None:
    before, _ = old_and_new("plain")
    name = b"X" + (70_000).to_bytes(4, "little") + b"0t\x94b" * 17_500
    at = before.index(b"\x8c\x04bool\x94h")
    long = before[:at] + name + before[at + 6 :]
    after = rewrite(long, "2.14").data
    assert count_dropped(long, after) == 4


def test_a_state_that_is_in_use_elsewhere_too_is_refused(tmp_path: Path) -> None:
    """It would be shorter there as well. No PyTorch writes that, so this one is made by hand."""
    whole = unframed(metadata(1, 1))
    memoized = -1
    for opcode in opcodes(whole, 2):
        memoized += opcode.code == 0x94
        if whole[opcode.start - 1 : opcode.start + 2] == b"t\x94b":
            break
    at = whole.index(b"planner_data")
    at = whole.index(b"\x85\x94", at)  # the value of the planner's only entry: a tuple of its name
    shared = whole[:at] + b"0h" + bytes([memoized]) + whole[at + 1 :]
    (tmp_path / ".metadata").write_bytes(shared)
    assert count_dropped(shared, rewrite(shared, "2.14").data) == 1
    with pytest.raises(CannotConvertError, match="something else differs"):
        convert(LocalStore(tmp_path), "2.14")
    write_checkpoint(tmp_path, whole)
    assert convert(LocalStore(tmp_path), "2.14")
