"""Every kind of damage that PyTorch loads silently or cannot explain, with its file named."""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from keepstep.checkpoint.compare import compare
from keepstep.checkpoint.contents import read_slices
from keepstep.checkpoint.downgrade import convert, put_in_place
from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.findings import Finding, Verification, Weight
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.stored import parts, tensor_part
from keepstep.checkpoint.verify import verify
from tests.checkpoint.conftest import DATA, Checkpoint


def check(folder: Path) -> Verification:
    return verify(LocalStore(folder))


def only(found: Verification, code: str) -> Finding:
    """Return the first finding with a code; fail where there is none."""
    return next(finding for finding in found.findings if finding.code == code)


@pytest.mark.parametrize("case", ["plain", "noncontig", "objects", "dtensor2", "zero_d", "nested"])
@pytest.mark.parametrize("version", ["2.14.1", "2.15.0"])
def test_a_sound_checkpoint_has_no_findings(
    case: str, version: str, checkpoint: Checkpoint
) -> None:
    found = check(checkpoint(case, version))
    assert found.findings == ()
    assert found.unchecked == 0
    assert found.checked > 0


@pytest.mark.parametrize("version", ["2.2.2", "2.3.1", "2.4.1"])
def test_older_forms_are_sound_as_well(version: str, checkpoint: Checkpoint) -> None:
    found = check(checkpoint("plain", version))
    assert (found.findings, found.checked) == ((), 7)


def test_a_downgrade_changes_nothing_for_it(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    store = LocalStore(folder)
    for conversion in convert(store, "2.14"):
        put_in_place(store, conversion)
    assert check(folder).findings == ()


def test_a_flipped_bit_is_found_and_its_tensor_named(
    checkpoint: Checkpoint,
) -> None:
    folder = checkpoint()
    path = folder / "__0_0.distcp"
    sound = path.read_bytes()
    with (folder / ".metadata").open("rb") as file:
        _, slices, _ = read_slices(file)
    for each in slices:
        with path.open("rb") as data:
            data.seek(each.offset)
            (folder / "slice").write_bytes(data.read(each.length))
        with zipfile.ZipFile(folder / "slice") as archive:
            entry = archive.getinfo("archive/data/0")
        begin = each.offset + entry.header_offset
        name, extra = struct.unpack_from("<2H", sound, begin + 26)
        begin += 30 + name + extra
        for position in (begin, begin + entry.file_size - 1):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << (position % 8)
            path.write_bytes(damaged)
            finding = only(check(folder), "slice")
            assert (finding.weight, finding.file) == (Weight.DAMAGE, "__0_0.distcp")
            assert finding.text.startswith(f"{each.name} at byte")


@pytest.mark.parametrize("lost", [1, 100, 3000, 6307])
def test_a_truncated_data_file(lost: int, checkpoint: Checkpoint) -> None:
    path = checkpoint() / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-lost])
    assert only(check(path.parent), "short-file").file == "__0_0.distcp"


def test_an_empty_data_file(checkpoint: Checkpoint) -> None:
    path = checkpoint() / "__0_0.distcp"
    path.write_bytes(b"")
    assert only(check(path.parent), "short-file").file == "__0_0.distcp"


def test_a_missing_data_file(checkpoint: Checkpoint) -> None:
    folder = checkpoint("dtensor2")
    (folder / "__1_0.distcp").unlink()
    finding = only(check(folder), "missing-file")
    assert (finding.weight, finding.file) == (Weight.DAMAGE, "__1_0.distcp")


@pytest.mark.parametrize("size", [0, 1, 700, 1344])
def test_empty_or_truncated_metadata(size: int, checkpoint: Checkpoint) -> None:
    path = checkpoint() / ".metadata"
    path.write_bytes(path.read_bytes()[:size])
    finding = only(check(path.parent), "metadata")
    assert (finding.weight, finding.file) == (Weight.DAMAGE, ".metadata")


def test_an_overwrite_that_was_cut_off_after_one_file(checkpoint: Checkpoint) -> None:
    folder = checkpoint("dtensor2")
    os.utime(folder / "__0_0.distcp", (2_000_000_000, 2_000_000_000))
    found = check(folder)
    finding = only(found, "newer-than-metadata")
    assert (finding.weight, finding.file) == (Weight.SUSPECT, "__0_0.distcp")
    assert found.worst() is Weight.SUSPECT


def test_missing_metadata_is_named(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / ".metadata").unlink()
    with pytest.raises(NotACheckpointError, match=r"no \.metadata"):
        check(folder)


def test_a_data_file_of_the_same_shapes_shows_in_its_time_alone(checkpoint: Checkpoint) -> None:
    """Another element with its right CRC, as a save of another step would have written it."""
    path = checkpoint("dtensor2") / "__0_0.distcp"
    with (path.parent / ".metadata").open("rb") as file:
        _, slices, _ = read_slices(file)
    each = next(each for each in slices if each.file == path.name and each.sizes)
    sound = path.read_bytes()
    content = sound[each.offset : each.offset + each.length]
    stored = tensor_part(parts(memoryview(content)))
    assert stored is not None
    before = content[stored.start : stored.start + stored.size]
    after = bytes([before[0] ^ 1]) + before[1:]
    changed = content.replace(before, after)
    old, new = (zlib.crc32(data).to_bytes(4, "little") for data in (before, after))
    changed = changed.replace(old, new)
    path.write_bytes(sound.replace(content, changed))
    found = check(path.parent)
    assert [(each.weight, each.code, each.file) for each in found.findings] == [
        (Weight.SUSPECT, "newer-than-metadata", "__0_0.distcp")
    ]


def test_a_data_file_of_another_checkpoint_with_other_shapes(checkpoint: Checkpoint) -> None:
    folder = checkpoint("plain")
    sound = (folder / "__0_0.distcp").read_bytes()
    # The first two slices change places: whole zips with right CRCs, in the wrong place.
    swapped = sound[1577:3154] + sound[:1577] + sound[3154:]
    (folder / "__0_0.distcp").write_bytes(swapped)
    os.utime(folder / "__0_0.distcp", (1_000_000_000, 1_000_000_000))
    finding = only(check(folder), "slice")
    assert "bytes of elements" in finding.text


def test_a_crash_between_removing_and_renaming_offers_the_recovery(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    found = check(folder)
    assert only(found, "unfinished-save").file == ".metadata.tmp"
    assert found.recovery == f"mv {folder}/.metadata.tmp {folder}/.metadata"
    assert os.system(found.recovery) == 0
    assert check(folder).findings == ()


def test_there_is_no_recovery_when_more_is_missing(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    (folder / "__0_0.distcp").unlink()
    found = check(folder)
    assert found.recovery == ""
    assert only(found, "missing-file").file == "__0_0.distcp"


def test_stale_metadata_of_a_rank(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    shutil.copy2(folder / ".metadata", folder / "__0.metadata")
    finding = only(check(folder), "stale-rank-metadata")
    assert (finding.weight, finding.file) == (Weight.DAMAGE, "__0.metadata")


def test_a_file_left_by_a_larger_save(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    shutil.copy2(folder / "__0_0.distcp", folder / "__0_1.distcp")
    finding = only(check(folder), "stray-file")
    assert (finding.weight, finding.file) == (Weight.NOTE, "__0_1.distcp")


def test_crcs_that_were_switched_off_are_neither_right_nor_wrong(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    at = 0
    while (at := data.find(b"PK\x01\x02", at)) >= 0:
        data[at + 16 : at + 20] = bytes(4)
        at += 4
    path.write_bytes(data)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    found = check(folder)
    assert (found.findings, found.checked, found.unchecked) == ((), 0, 4)


# Two checkpoints.


@pytest.mark.parametrize("case", ["plain", "noncontig", "objects", "dtensor2", "zero_d", "nested"])
def test_the_same_tensors_of_two_versions_are_equal(case: str) -> None:
    one, other = (LocalStore(DATA / f"torch-{v}" / case) for v in ("2.14.1", "2.15.0"))
    equal, differences = compare(one, other)
    assert differences == []
    assert equal > 0


def test_a_changed_element_is_found(checkpoint: Checkpoint) -> None:
    folder = checkpoint("noncontig")
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    with (folder / ".metadata").open("rb") as file:
        _, slices, _ = read_slices(file)
    (each,) = (each for each in slices if each.name == "chlast")
    at = data.index(b"data/0", each.offset)
    data[at + 200] ^= 1
    path.write_bytes(data)
    _, differences = compare(LocalStore(folder), LocalStore(DATA / "torch-2.15.0" / "noncontig"))
    assert [(each.name, each.known) for each in differences] == [("chlast", True)]


def test_what_only_one_of_them_holds_is_named() -> None:
    one, other = (LocalStore(DATA / "torch-2.15.0" / case) for case in ("plain", "zero_d"))
    _, differences = compare(one, other)
    assert {each.text for each in differences} >= {"only in the first", "only in the second"}
