"""Who can load what: the five versions against each other, and everything that is no plain DCP."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.eras import MINORS, RUN, minor_of
from keepstep.checkpoint.errors import NotACheckpointError, UnsafeMetadataError
from keepstep.checkpoint.payload import find_file_readers
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import DATA, Checkpoint

# Seen with the real installs: the oldest version that loads what each of them wrote.
OLDEST = {"2.2.2": "2.0", "2.3.1": "2.3", "2.4.1": "2.4", "2.14.1": "2.4", "2.15.0": "2.15"}


@pytest.mark.parametrize(("writer", "oldest"), OLDEST.items())
def test_each_version_is_read_by_itself_and_by_newer_ones(writer: str, oldest: str) -> None:
    found = find_readers(LocalStore(DATA / f"torch-{writer}" / "plain"))
    assert found.kind == "dcp"
    assert found.oldest == oldest
    can = MINORS[MINORS.index(oldest) :]
    assert found.readers == {minor: minor in can for minor in MINORS}
    assert found.evidence[minor_of(writer)] == f"run with PyTorch {RUN[minor_of(writer)]}"
    assert found.evidence["2.7"] == "derived from its source"


def test_a_shardedtensor_without_strides_breaks_2_14_as_well() -> None:
    found = find_readers(LocalStore(DATA / "torch-2.15.0" / "sharded_tensor"))
    assert found.readers["2.14"] is False
    assert found.readers["2.15"] is True


def test_the_safetensors_format_of_the_plain_writer_is_read_by_nobody() -> None:
    found = find_readers(LocalStore(DATA / "torch-2.15.0" / "safetensors_fmt"))
    assert set(found.readers.values()) == {False}
    assert "not even the one that wrote it" in found.notes[0]


def test_huggingface_files_have_their_own_answer() -> None:
    found = find_readers(LocalStore(DATA / "torch-2.15.0" / "hf"))
    assert found.kind == "huggingface"
    assert (found.readers["2.14"], found.readers["2.15"], found.readers["2.3"]) == (
        True,
        True,
        None,
    )


def test_without_a_tensor_nothing_is_newer_than_2_4(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(metadata(0, 0, objects=5))
    found = find_readers(LocalStore(tmp_path))
    assert found.oldest == "2.4"


@pytest.mark.parametrize("objects", [5_000, 30_000])
def test_many_objects_before_the_first_tensor_do_not_hide_it(objects: int, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(metadata(3, 1, objects=objects))
    found = find_readers(LocalStore(tmp_path))
    assert found.oldest == "2.15"


def test_a_path_of_python_3_13_is_told(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    _write_as_python_313(folder)
    found = find_readers(LocalStore(folder))
    assert found.python == ">=3.13"
    assert any("pathlib._local" in note for note in found.notes)


def _write_as_python_313(folder: Path) -> None:
    path = folder / ".metadata"
    old, new = b"\x8c\x07pathlib\x94", b"\x8c\x0epathlib._local\x94"
    path.write_bytes(path.read_bytes().replace(old, new))


def test_rank_local_metadata_needs_2_9(checkpoint: Checkpoint) -> None:
    folder = checkpoint(version="2.14.1")
    (folder / ".metadata").rename(folder / "__0.metadata")
    found = find_readers(LocalStore(folder))
    assert (found.kind, found.oldest) == ("rank-local", "2.9")


def test_stale_rank_local_metadata_is_told(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    shutil.copy(folder / ".metadata", folder / "__0.metadata")
    assert any("__0.metadata" in note for note in find_readers(LocalStore(folder)).notes)


def test_a_save_that_was_cut_off_names_the_command_that_looks_further(
    checkpoint: Checkpoint,
) -> None:
    folder = checkpoint()
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    with pytest.raises(NotACheckpointError, match="keepstep checkpoint verify"):
        find_readers(LocalStore(folder))


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"not a pickle", b"\x80\x04]."])
def test_damaged_metadata_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(UnsafeMetadataError):
        find_readers(LocalStore(tmp_path))


def test_every_cut_of_the_metadata_before_the_first_tensor_is_reported(tmp_path: Path) -> None:
    whole = (DATA / "torch-2.15.0" / "plain" / ".metadata").read_bytes()
    for size in range(290):
        (tmp_path / ".metadata").write_bytes(whole[:size])
        with pytest.raises(UnsafeMetadataError):
            find_readers(LocalStore(tmp_path))


@pytest.mark.parametrize("tensors", [1, 20_000])
@pytest.mark.parametrize("lost", [1, 9])
def test_metadata_without_its_end_is_reported(tensors: int, lost: int, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(metadata(tensors, 1, fields=5)[:-lost])
    with pytest.raises(UnsafeMetadataError, match="cut off"):
        find_readers(LocalStore(tmp_path))


def test_the_answer_takes_milliseconds_whatever_the_size(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(metadata(2000, 20))
    store = LocalStore(tmp_path)
    taken = []
    for _ in range(5):
        begin = time.process_time()
        find_readers(store)
        taken.append(time.process_time() - begin)
    assert min(taken) < 0.010


def test_versions_are_understood_with_patch_and_build() -> None:
    assert minor_of("2.14.1+cu130") == "2.14"
    with pytest.raises(ValueError, match="wanted one of"):
        minor_of("1.13")


# Single files of torch.save. A slice of a checkpoint is one; so is a tensor's.


@pytest.mark.parametrize(
    ("case", "readers"), [("plain", {True}), ("objects", {True}), ("sharded_tensor", {True})]
)
def test_a_file_of_tensors_is_read_by_all(case: str, readers: set[bool], tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    data = (DATA / "torch-2.15.0" / case / "__0_0.distcp").read_bytes()
    path.write_bytes(data[: data.index(b"PK\x05\x06") + 22])
    found = find_file_readers(path)
    assert found.kind == "torch.save"
    assert set(found.readers.values()) == readers


def test_what_is_no_file_of_torch_save_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    path.write_bytes(b"nothing")
    with pytest.raises(NotACheckpointError, match=r"not a file of torch\.save"):
        find_file_readers(path)
