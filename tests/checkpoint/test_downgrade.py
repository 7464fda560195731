"""Downgrades: equal but for what had to go, undone byte for byte, safe at every moment."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.contents import ask
from keepstep.checkpoint.downgrade import KEPT, RECORD, Conversion, convert, put_in_place, undo
from keepstep.checkpoint.errors import CannotConvertError, CheckpointError, UnsafeMetadataError
from keepstep.checkpoint.names import METADATA, SHARDED
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.rewrite import rewrite
from keepstep.checkpoint.sibling import Placement, choose_placement, make_sibling
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.verify import verify
from tests.checkpoint.conftest import DATA, Checkpoint, write_checkpoint
from tests.checkpoint.system_calls import killed_at

CASES = ["plain", "noncontig", "objects", "dtensor2", "zero_d", "nested", "sharded_tensor"]


class _Strict(pickle.Unpickler):
    """Loads metadata as an old PyTorch does: with its names, and with five tensor properties."""

    def __init__(self, data: bytes, minor: str) -> None:
        super().__init__(io.BytesIO(data))
        self._minor = tuple(map(int, minor.split(".")))

    def find_class(self, module: str, name: str) -> Any:
        home = METADATA if self._minor >= (2, 3) else SHARDED
        encoding = "_MEM_FORMAT_ENCODING" if self._minor >= (2, 3) else "MEM_FORMAT_ENCODING"
        if name == "TensorProperties" and module == home:
            return _FiveProperties
        if name == encoding and module == home:
            return _Encoding
        if name == "StorageMeta" and self._minor < (2, 4):
            raise AttributeError(name)
        if name in ("TensorProperties", "_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING"):
            raise AttributeError(f"{module}.{name}")
        if (module, name) == ("torch", "Size"):
            return tuple
        if name == "PosixPath":
            return Path
        if name == "_get_layout":
            return str
        if module == "torch":
            return name
        return type(name, (_Anything,), {})


class _Anything:
    def __hash__(self) -> int:
        return hash(self.__dict__.get("fqn"))


class _Encoding(Enum):
    CONTIGUOUS = 0


class _FiveProperties:
    def __setstate__(self, state: Any) -> None:
        self.dtype, self.layout, self.requires_grad, self.format, self.pin_memory = state


@pytest.mark.parametrize("minor", ["2.14", "2.4", "2.3", "2.2"])
@pytest.mark.parametrize("case", CASES)
def test_the_result_has_the_form_of_the_older_version(case: str, minor: str) -> None:
    (made,) = convert(LocalStore(DATA / "torch-2.15.0" / case), minor)
    found = _Strict(made.after.data, minor).load()
    assert found.state_dict_metadata
    assert (found.storage_meta is None) == (minor in ("2.3", "2.2"))
    with pytest.raises((ValueError, AttributeError)):
        _Strict(made.before, minor).load()


@pytest.mark.parametrize("case", ["plain", "noncontig", "objects", "dtensor2", "zero_d", "nested"])
def test_it_says_what_the_real_2_14_wrote_for_the_same_tensors(case: str, tmp_path: Path) -> None:
    (made,) = convert(LocalStore(DATA / "torch-2.15.0" / case), "2.14")
    (tmp_path / "made").write_bytes(made.after.data)
    digests = []
    for path in (tmp_path / "made", DATA / "torch-2.14.1" / case / ".metadata"):
        with path.open("rb") as file:
            found = ask(file, "digest", "summary")
            digests.append({**found["digest"], "fields": found["summary"]["fields"]})
    for found in digests:
        del found["storage_meta"]  # path and identity of each save
    assert digests[0] == digests[1]


@pytest.mark.parametrize("case", CASES)
def test_undo_restores_every_byte_and_nothing_else_changed(
    case: str, checkpoint: Checkpoint
) -> None:
    folder = checkpoint(case)
    store = LocalStore(folder)
    before = _state(folder)
    (made,) = convert(store, "2.14")
    put_in_place(store, made)
    during = _state(folder)
    assert during.keys() - before.keys() == {f".metadata{KEPT}", f".metadata{RECORD}"}
    assert find_readers(store).readers["2.14"] is True
    assert {name for name in before if during[name] != before[name]} == {".metadata"}
    assert (folder / ".metadata").stat().st_mtime_ns == 1_000_000_001 * 10**9
    assert undo(store) == [".metadata"]
    assert _state(folder) == before


def test_a_second_downgrade_keeps_the_first_original(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    store, before = LocalStore(folder), _state(folder)
    for minor in ("2.14", "2.3", "2.2"):
        (made,) = convert(store, minor)
        put_in_place(store, made)
        assert find_readers(store).readers[minor] is True
        assert _Strict(made.after.data, minor).load().state_dict_metadata
    undo(store)
    assert _state(folder) == before


def test_what_is_readable_already_is_left_alone(checkpoint: Checkpoint) -> None:
    assert convert(LocalStore(checkpoint(version="2.14.1")), "2.14") == []
    assert convert(LocalStore(checkpoint(name="other")), "2.15") == []


@pytest.mark.parametrize(("tensors", "shards"), [(3000, 1), (20, 300)])
def test_large_metadata_has_frames_that_begin_anywhere(
    tensors: int, shards: int, tmp_path: Path
) -> None:
    whole = metadata(tensors, shards)
    assert whole.count(b"\x95") > 5
    write_checkpoint(tmp_path, whole)
    (made,) = convert(LocalStore(tmp_path), "2.2")
    assert made.after.strides == tensors
    assert len(_Strict(made.after.data, "2.2").load().state_dict_metadata) == tensors


def test_a_name_of_more_than_64_kb_stands_between_frames(tmp_path: Path) -> None:
    whole = (DATA / "torch-2.15.0" / "plain" / ".metadata").read_bytes()
    name = b"X" + (70_000).to_bytes(4, "little") + b"n" * 70_000
    at = whole.index(b"\x8c\x04bool\x94h\x09")
    first = b"\x95" + (at - 11).to_bytes(8, "little") + whole[11:at]
    rest = whole[at + 6 :]
    second = b"\x95" + len(rest).to_bytes(8, "little") + rest
    write_checkpoint(tmp_path, whole[:2] + first + name + second)
    (made,) = convert(LocalStore(tmp_path), "2.14")
    assert made.after.strides == 4
    assert "n" * 70_000 in _Strict(made.after.data, "2.14").load().state_dict_metadata


def test_undo_refuses_when_the_checkpoint_was_saved_again(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    store = LocalStore(folder)
    (made,) = convert(store, "2.14")
    put_in_place(store, made)
    new = (DATA / "torch-2.15.0" / "noncontig" / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(new)
    with pytest.raises(CheckpointError, match="written again since"):
        undo(store)
    assert (folder / ".metadata").read_bytes() == new
    (made,) = convert(LocalStore(checkpoint("noncontig", name="like")), "2.14")


def test_undo_without_a_downgrade_says_so(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="no downgrade to undo"):
        undo(LocalStore(checkpoint()))


def test_a_save_during_the_conversion_wins(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    store = LocalStore(folder)
    (made,) = convert(store, "2.14")
    new = (DATA / "torch-2.15.0" / "noncontig" / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(new)
    with pytest.raises(CheckpointError, match="written by somebody else"):
        put_in_place(store, made)
    assert (folder / ".metadata").read_bytes() == new


def test_a_path_of_python_3_13_is_mended(checkpoint: Checkpoint) -> None:
    folder = checkpoint(version="2.14.1")
    path = folder / ".metadata"
    original = path.read_bytes()
    path.write_bytes(original.replace(b"\x8c\x07pathlib\x94", b"\x8c\x0epathlib._local\x94"))
    (made,) = convert(LocalStore(folder), "2.14")
    assert made.after.python_313
    assert made.after.data == original[:2] + original[11:]  # without the FRAME, as it was


def test_rank_local_metadata_is_converted_file_by_file(checkpoint: Checkpoint) -> None:
    folder = checkpoint("dtensor2")
    content = (folder / ".metadata").read_bytes()
    (folder / ".metadata").unlink()
    for rank in range(2):
        (folder / f"__{rank}.metadata").write_bytes(content)
    store = LocalStore(folder)
    for made in convert(store, "2.14"):
        put_in_place(store, made)
    assert find_readers(store).readers["2.14"] is True
    with pytest.raises(CannotConvertError, match=r"2\.9 is the oldest"):
        convert(store, "2.4")
    assert undo(store) == ["__0.metadata", "__1.metadata"]
    assert (folder / "__1.metadata").read_bytes() == content


def test_an_object_with_a_shardedtensor_inside_is_refused_by_name(checkpoint: Checkpoint) -> None:
    folder = checkpoint("objects")
    _replace_object(folder, "name")
    with pytest.raises(CannotConvertError, match=r"these entries .*: name"):
        convert(LocalStore(folder), "2.14")


def _replace_object(folder: Path, name: str) -> None:
    """Put a zip of the same length, holding the fatal global, in the place of an object."""
    with (folder / ".metadata").open("rb") as file:
        (found,) = [item for item in ask(file, "objects")["objects"] if item[0] == name]
    _, path, offset, length = found
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            "archive/data.pkl", f"\x80\x02c{SHARDED}\nTensorProperties\n.".encode("latin-1")
        )
        archive.writestr("archive/version", "3\n")
        padding = length - len(buffer.getvalue()) - 400
        archive.writestr("archive/padding", b"x" * max(padding, 0))
    content = buffer.getvalue()
    comment = length - len(content)
    assert comment >= 0
    content = content[:-2] + comment.to_bytes(2, "little") + b"-" * comment
    data = (folder / path).read_bytes()
    (folder / path).write_bytes(data[:offset] + content + data[offset + length :])


def test_what_no_version_loads_is_refused() -> None:
    with pytest.raises(CannotConvertError, match="safetensors format"):
        convert(LocalStore(DATA / "torch-2.15.0" / "safetensors_fmt"), "2.14")
    with pytest.raises(CannotConvertError, match="no metadata to convert"):
        convert(LocalStore(DATA / "torch-2.15.0" / "hf"), "2.14")


# Data files: there, and long enough. What is in them is for verify.


@pytest.mark.parametrize("version", ["2.15.0", "2.14.1"])
def test_a_missing_data_file_is_refused_also_where_nothing_needs_to_change(
    version: str, checkpoint: Checkpoint
) -> None:
    folder = checkpoint("dtensor2", version)
    (folder / "__1_0.distcp").unlink()
    with pytest.raises(
        CannotConvertError, match=r"__1_0\.distcp: missing; \.metadata stores"
    ) as got:
        convert(LocalStore(folder), "2.14")
    assert f"keepstep checkpoint verify {folder}" in str(got.value)


def test_a_data_file_that_ends_within_its_last_slice_is_refused(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    path = folder / "__0_0.distcp"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(CannotConvertError, match=rf"{size - 1} bytes; .* up to byte {size}"):
        convert(LocalStore(folder), "2.14")


def test_data_files_of_another_checkpoint_are_found_where_the_metadata_says(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = checkpoint()
    (tmp_path / "a").mkdir()
    (folder / "__0_0.distcp").rename(tmp_path / "a" / "_0.distcp")
    content = (folder / ".metadata").read_bytes()
    other = content.replace(b"\x0c__0_0.distcp", b"\x0e../a/_0.distcp")
    (folder / ".metadata").write_bytes(other[:3] + _longer(other[3:11], 2) + other[11:])
    os.utime(folder / ".metadata", (1_000_000_001, 1_000_000_001))
    assert convert(LocalStore(folder), "2.14")
    found = verify(LocalStore(folder))
    assert (found.findings, found.checked) == ((), 4)
    (tmp_path / "a" / "_0.distcp").unlink()
    (tmp_path / "a" / "_0.distcp").mkdir()
    with pytest.raises(CannotConvertError, match="missing"):
        convert(LocalStore(folder), "2.14")


def _longer(frame: bytes, more: int) -> bytes:
    return (int.from_bytes(frame, "little") + more).to_bytes(8, "little")


@pytest.mark.parametrize("cut", range(1, 1345, 48))
def test_damaged_metadata_is_never_rewritten(cut: int) -> None:
    whole = (DATA / "torch-2.15.0" / "plain" / ".metadata").read_bytes()
    with pytest.raises(UnsafeMetadataError):
        rewrite(whole[:cut], "2.14")


def test_names_like_those_of_classes_are_not_mistaken(tmp_path: Path) -> None:
    """A tensor may be called StorageMeta; bytes in a name may look like opcodes."""
    whole = (DATA / "torch-2.15.0" / "plain" / ".metadata").read_bytes()
    for old, new in [
        (b"\x8c\x04bool\x94h\x09", b"\x8c\x0bStorageMeta\x94h\x09"),
        (b"\x8c\x04bool\x94h\x09", b"\x8c\x0epathlib._local\x94h\x09"),
        (b"\x8c\x04bool\x94h\x09", b"\x8c\x09(h\x10h\x18t0tb\x94h\x09"),
    ]:
        write_checkpoint(tmp_path, whole.replace(old, new, 1))
        assert (tmp_path / ".metadata").read_bytes() != whole
        (made,) = convert(LocalStore(tmp_path), "2.2")
        assert made.after.strides == 4
        assert not made.after.python_313
        assert new[2:-3] in made.after.data


# A folder of its own.


@pytest.mark.parametrize("placement", [Placement.LINK, Placement.COPY])
def test_a_sibling_is_complete_and_the_source_untouched(
    placement: Placement, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = checkpoint("dtensor2")
    before = _state(folder)
    store = LocalStore(folder)
    target = tmp_path / "elsewhere" / "step-100"
    target.parent.mkdir()
    make_sibling(store, target, convert(store, "2.14"), placement)
    assert _state(folder) == before
    assert find_readers(LocalStore(target)).readers["2.14"] is True
    assert {path.name for path in target.iterdir()} == before.keys()
    shares = (target / "__0_0.distcp").samefile(folder / "__0_0.distcp")
    assert shares == (placement is Placement.LINK)


def test_the_placement_is_tried_and_leaves_nothing_behind(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = checkpoint()
    before = sorted(tmp_path.iterdir())
    assert choose_placement(folder, tmp_path / "new") in (Placement.REFLINK, Placement.LINK)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(CheckpointError, match="empty or new"):
        choose_placement(folder, folder)


def test_across_file_systems_it_is_a_copy(checkpoint: Checkpoint) -> None:
    elsewhere = Path("/dev/shm")
    folder = checkpoint()
    if elsewhere.stat().st_dev == folder.stat().st_dev:
        pytest.skip("one file system only")
    assert choose_placement(folder, elsewhere / "keepstep-new") is Placement.COPY


# Crashes.


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_the_old_or_the_new_metadata(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    store, before = LocalStore(folder), _state(folder)
    (made,) = convert(store, "2.14")
    whole = _time_of_a_whole_run(store, made)
    undo(store)
    randomness = random.Random(1)
    seen: Counter[str] = Counter()
    for _ in range(200):
        fresh = replace(made, stamp=store.stamp(".metadata"))  # undo has written the file anew
        _kill_after(randomness.uniform(0, 1.5 * whole), store, fresh)
        now = (folder / ".metadata").read_bytes()
        assert now in (made.before, made.after.data)
        assert find_readers(store).readers["2.15"] is True
        seen["new" if now == made.after.data else "old"] += 1
        if now == made.before:  # whatever was left behind, the next attempt succeeds
            (again,) = convert(store, "2.14")
            put_in_place(store, again)
        undo(store)
        assert {k: v for k, v in _state(folder).items() if "unfinished" not in k} == before
    print(dict(seen))
    assert seen.keys() == {"old", "new"}


@pytest.mark.slow
@pytest.mark.parametrize("action", ["downgrade", "undo"])
def test_killed_at_each_system_call_it_leaves_the_old_or_the_new_metadata(
    action: str, checkpoint: Checkpoint
) -> None:
    folder = checkpoint()
    store, before = LocalStore(folder), _state(folder)
    (made,) = convert(store, "2.14")
    seen = []
    for stop in range(1, 2000):
        if action == "undo":
            put_in_place(store, replace(made, stamp=store.stamp(".metadata")))
            killed = killed_at(stop, lambda: undo(store))
        else:
            now = replace(made, stamp=store.stamp(".metadata"))
            killed = killed_at(stop, partial(put_in_place, store, now))
        content = (folder / ".metadata").read_bytes()
        assert content in (made.before, made.after.data)
        assert find_readers(store).readers["2.15"] is True
        seen.append(content == made.after.data)
        if content == made.before:  # whatever was left behind, the next attempt succeeds
            put_in_place(store, replace(made, stamp=store.stamp(".metadata")))
        assert (folder / ".metadata").read_bytes() == made.after.data
        undo(store)
        assert {k: v for k, v in _state(folder).items() if "unfinished" not in k} == before
        if not killed:
            break
    assert not killed, "it came to its end"
    print(f"{action}: killed at {len(seen) - 1} stops, {seen.index(seen[-1])} before the change")
    assert 0 < seen.index(seen[-1]) < len(seen) - 1
    assert seen == sorted(seen, reverse=action == "undo"), "it changes once"


def _time_of_a_whole_run(store: LocalStore, made: Conversion) -> float:
    begin = time.perf_counter()
    _kill_after(60, store, made)
    return time.perf_counter() - begin


def _kill_after(seconds: float, store: LocalStore, made: Conversion) -> None:
    process = multiprocessing.get_context("fork").Process(target=put_in_place, args=(store, made))
    process.start()
    process.join(seconds)
    assert process.pid is not None
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("step", range(1, 13))
def test_an_error_at_any_step_leaves_the_old_or_the_new_metadata(
    step: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail at each call that changes the disk in turn, as if it were full or gone."""
    folder = checkpoint()
    store, before = LocalStore(folder), _state(folder)
    (made,) = convert(store, "2.14")
    calls = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                raise OSError(28, "no space left on device")
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync))
        patch.setattr(os, "replace", failing(os.replace))
        try:
            put_in_place(store, made)
        except OSError:
            assert calls == step
    assert (folder / ".metadata").read_bytes() in (made.before, made.after.data)
    if (folder / ".metadata").read_bytes() == made.before:
        (again,) = convert(store, "2.14")
        put_in_place(store, again)
    undo(store)
    assert _state(folder) == before


def _state(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# The real PyTorch 2.15.


@pytest.mark.slow
def test_pytorch_2_15_loads_the_same_values_before_and_after(checkpoint: Checkpoint) -> None:
    folder = checkpoint("noncontig")
    store = LocalStore(folder)
    program = (
        "import sys, hashlib, torch, torch.distributed.checkpoint as dcp\n"
        "from torch.distributed.checkpoint.format_utils import _EmptyStateDictLoadPlanner\n"
        "from torch.distributed.checkpoint.state_dict_loader import _load_state_dict\n"
        "state = {}\n"
        "_load_state_dict(state, storage_reader=dcp.FileSystemReader(sys.argv[1]),"
        " planner=_EmptyStateDictLoadPlanner(), no_dist=True)\n"
        "for name in sorted(state):\n"
        "    value = state[name].contiguous()\n"
        "    raw = value.reshape(-1).view(torch.uint8).numpy().tobytes()\n"
        "    print(name, value.dtype, tuple(value.shape), hashlib.sha256(raw).hexdigest())\n"
    )

    def values() -> str:
        return subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    before = values()
    assert before.count("\n") == 6
    for minor in ("2.14", "2.2"):
        (made,) = convert(store, minor)
        put_in_place(store, made)
        assert values() == before


def test_the_strict_reader_of_these_tests_knows_a_real_2_14_from_a_2_15() -> None:
    """It accepts what the real versions accept, as they were seen to."""
    for version, minor, fine in [
        ("2.14.1", "2.14", True),
        ("2.4.1", "2.4", True),
        ("2.3.1", "2.3", True),
        ("2.2.2", "2.2", True),
        ("2.15.0", "2.14", False),
        ("2.4.1", "2.3", False),
        ("2.3.1", "2.2", False),
    ]:
        data = (DATA / f"torch-{version}" / "plain" / ".metadata").read_bytes()
        try:
            _Strict(data, minor).load()
        except (ValueError, AttributeError):
            assert not fine
        else:
            assert fine
