"""Folders of safetensors files: what is wrong with them, with the file named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.findings import Verification, Weight
from keepstep.checkpoint.readers import HF_INDEX
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.verify import verify
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from tests.checkpoint.conftest import DATA

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Header = dict[str, Any]


def safetensors(header: Header, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def header_of(shapes: dict[str, list[int]], **offsets: list[int]) -> tuple[Header, int]:
    """Return the header of float32 tensors, one after the other, and their bytes."""
    header: Header = {}
    if offsets:
        info = {name: {"saved_offsets": place} for name, place in offsets.items()}
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(info)}
    at = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * prod(shape)]}
        at += 4 * prod(shape)
    return header, at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with an index, as transformers and PyTorch leave them."""
    places: dict[str, str] = {}
    for name, shapes in ((ONE, {"a": [3, 4], "b": [2]}), (TWO, {"c": [5], "empty": [0, 7]})):
        header, size = header_of(shapes)
        (tmp_path / name).write_bytes(safetensors(header, bytes(size)))
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))
        places |= dict.fromkeys(shapes, name)
    index = {"metadata": {"total_size": 76}, "weight_map": places}
    (tmp_path / HF_INDEX).write_text(json.dumps(index))
    return tmp_path


def check(folder: Path) -> Verification:
    return verify(LocalStore(folder))


def codes(folder: Path) -> list[tuple[Weight, str, str]]:
    return [(each.weight, each.code, each.file) for each in check(folder).findings]


def change(path: Path, edit: Callable[[Header], None]) -> None:
    """Edit the header of a file, or an index; the time stays."""
    content, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    if path.name == HF_INDEX:
        header = json.loads(content)
        edit(header)
        path.write_text(json.dumps(header))
    else:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        edit(header)
        path.write_bytes(safetensors(header, content[end:]))
    os.utime(path, ns=times)


def test_a_sound_folder_is_not_proven_because_nothing_holds_a_checksum(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = check(folder)
    assert (found.findings, found.checked, found.unchecked) == ((), 0, 4)
    assert execute(["checkpoint", "verify", str(folder)]) == ExitCode.INCONCLUSIVE
    assert "not checked: 4 slices whose bytes cannot be checked" in capsys.readouterr().out


def test_what_pytorch_wrote_is_sound(tmp_path: Path) -> None:
    shutil.copytree(DATA / "torch-2.15.0" / "hf", tmp_path / "hf")
    for path in (tmp_path / "hf").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    found = check(tmp_path / "hf")
    assert (found.findings, found.unchecked) == ((), 4)


def test_a_file_that_the_index_names_is_missing(folder: Path) -> None:
    (folder / TWO).unlink()
    assert codes(folder) == [(Weight.DAMAGE, "missing-file", TWO)]
    assert execute(["checkpoint", "verify", str(folder)]) == ExitCode.FAIL


def test_a_file_is_missing_whose_name_has_no_number(folder: Path) -> None:
    change(folder / HF_INDEX, lambda index: index["weight_map"].update(c="other.safetensors"))
    assert (Weight.DAMAGE, "missing-file", "other.safetensors") in codes(folder)


def test_a_gap_in_the_numbers_is_found_without_an_index(folder: Path) -> None:
    (folder / HF_INDEX).unlink()
    assert codes(folder) == []
    (folder / ONE).unlink()
    assert codes(folder) == [(Weight.DAMAGE, "missing-file", ONE)]


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_off(keep: int, folder: Path) -> None:
    content = (folder / ONE).read_bytes()
    (folder / ONE).write_bytes(content[:keep])
    os.utime(folder / ONE, (1_000_000_000, 1_000_000_000))
    code = "short-file" if keep == -1 else "header"
    assert (Weight.DAMAGE, code, ONE) in codes(folder)


def test_bytes_behind_the_last_tensor(folder: Path) -> None:
    with (folder / ONE).open("ab") as file:
        file.write(b"x")
    assert (Weight.DAMAGE, "long-file", ONE) in codes(folder)


def place(name: str, begin: int, end: int) -> Callable[[Header], None]:
    return lambda header: header[name].update(data_offsets=[begin, end])


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (place("b", 40, 48), "b: it begins 8 bytes before the last ends"),
        (place("a", 4, 48), "a: 4 bytes before it belong to no tensor"),
        (lambda header: header["a"].update(shape=[3, 5]), "a: 48 bytes; 60 belong to F32"),
        (lambda header: header["a"].update(dtype="F64"), "a: 48 bytes; 96 belong to F64"),
        (lambda header: header["a"].update(dtype="F4"), "a: 48 bytes; 6 belong to F4"),
    ],
)
def test_places_that_do_not_fit(edit: Callable[[Header], None], text: str, folder: Path) -> None:
    change(folder / ONE, edit)
    found = [each for each in check(folder).findings if each.code == "layout"]
    assert found[0].file == ONE
    assert found[0].text.startswith(text)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda header: header["a"].update(shape=[-1]), "[-1] where sizes belong"),
        (lambda header: header["a"].update(shape="x"), "x where sizes belong"),
        (lambda header: header["a"].update(data_offsets=[9, 3]), "not begin and end"),
        (lambda header: header["a"].pop("dtype"), "without a dtype"),
        (lambda header: header.update(a=7), "without a dtype"),
        (lambda header: header.update(__metadata__={"DCP_SHARDING_INFO": "{"}), "no JSON"),
    ],
)
def test_headers_that_are_not_sane(edit: Callable[[Header], None], text: str, folder: Path) -> None:
    change(folder / ONE, edit)
    found = check(folder).findings[0]
    assert (found.weight, found.code, found.file) == (Weight.DAMAGE, "header", ONE)
    assert text in found.text


@pytest.mark.parametrize(
    "content",
    [
        (1 << 63).to_bytes(8, "little") + b"{}",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x02\0\0\0\0\0\0\0\xff\xff",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (19).to_bytes(8, "little") + b'{"a": {}, "a" : {}}',
    ],
)
def test_files_made_to_do_harm(content: bytes, folder: Path) -> None:
    (folder / ONE).write_bytes(content)
    assert (Weight.DAMAGE, "header", ONE) in codes(folder)


def test_a_tensor_is_in_another_file_than_the_index_says(folder: Path) -> None:
    change(folder / HF_INDEX, lambda index: index["weight_map"].update(a=TWO))
    assert codes(folder)[0] == (Weight.DAMAGE, "missing-tensor", TWO)
    assert "a:" in check(folder).findings[0].text


def test_a_tensor_that_the_index_does_not_know(folder: Path) -> None:
    change(folder / HF_INDEX, lambda index: index["weight_map"].pop("b"))
    assert (Weight.SUSPECT, "unknown-tensor", ONE) in codes(folder)


def test_a_total_size_that_is_not_the_sum(folder: Path) -> None:
    change(folder / HF_INDEX, lambda index: index["metadata"].update(total_size=77))
    assert codes(folder) == [(Weight.SUSPECT, "total-size", HF_INDEX)]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"weight_map": {"a": 7}}', b"{}"])
def test_an_index_that_is_none(content: bytes, folder: Path) -> None:
    (folder / HF_INDEX).write_bytes(content)
    assert codes(folder) == [(Weight.DAMAGE, "index", HF_INDEX)]


def test_a_file_newer_than_the_index_is_a_note(folder: Path) -> None:
    os.utime(folder / TWO, (4_000_000_000, 4_000_000_000))
    assert codes(folder) == [(Weight.NOTE, "newer-than-metadata", TWO)]


# A distributed save: every rank has its shards, and there is no index.


def shards(folder: Path, *begins: int, rows: int = 3) -> list[str]:
    """Write a file a rank with rows of one tensor; returns the names."""
    names = []
    for rank, begin in enumerate(begins, start=1):
        header, size = header_of({"w": [rows, 4]}, w=[begin, 0])
        names.append(f"shard-{rank:05}-model-00001-of-00001.safetensors")
        (folder / names[-1]).write_bytes(safetensors(header, bytes(size)))
    return names


def test_shards_of_ranks_that_fit(tmp_path: Path) -> None:
    shards(tmp_path, 0, 3)
    found = check(tmp_path)
    assert (found.findings, found.unchecked) == ((), 2)


@pytest.mark.parametrize("begins", [(0, 2), (0, 4), (3,), (0, 0)])
def test_shards_that_leave_gaps_or_overlap(begins: tuple[int, ...], tmp_path: Path) -> None:
    names = shards(tmp_path, *begins)
    (found,) = check(tmp_path).findings
    assert (found.weight, found.code, found.file) == (Weight.DAMAGE, "structure", names[0])
    assert found.text.startswith("w: its shards hold")


def test_a_tensor_in_two_files_without_offsets(folder: Path) -> None:
    (folder / HF_INDEX).unlink()
    header, size = header_of({"a": [3, 4]})
    (folder / TWO).write_bytes(safetensors(header, bytes(size)))
    assert codes(folder) == [(Weight.DAMAGE, "structure", ONE)]


# A run, not a checkpoint: its folders hold safetensors files, and it has none of its own.


@pytest.fixture
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    for step in (100, 200):
        shutil.copytree(folder, root / f"checkpoint-{step}")
    (root / "config.json").write_text("{}")
    return root


@pytest.mark.parametrize("command", [["readers"], ["inspect"], ["verify"]])
def test_a_folder_of_steps_is_not_taken_for_one_checkpoint(
    command: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(["checkpoint", *command, str(run)])
    printed = capsys.readouterr()
    assert (code, printed.out) == (ExitCode.FAIL, "")
    assert f"a folder with 2 of them, such as {run}/checkpoint-100: name one" in printed.err
    assert f"keepstep checkpoint status {run} --for MINOR" in printed.err


def test_status_looks_at_each_of_the_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["checkpoint", "status", str(run), "--for", "2.14"]) == ExitCode.PASS
    assert "PyTorch 2.14 can go back to checkpoint-200, the newest" in capsys.readouterr().out


def test_one_of_the_steps_is_not_taken_for_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["checkpoint", "status", str(folder), "--for", "2.14"]) == ExitCode.FAIL
    assert "this is one checkpoint" in capsys.readouterr().err


def test_parts_of_a_model_have_no_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoint-100").rename(run / "encoder")
    (run / "checkpoint-200").rename(run / "decoder")
    shutil.copytree(run / "decoder", run / "decoder" / "sharded")  # belongs to the decoder
    assert execute(["checkpoint", "readers", str(run)]) == ExitCode.FAIL
    assert f"a folder with 2 of them, such as {run}/decoder: name one\n" in capsys.readouterr().err


def test_an_index_whose_files_are_all_missing_is_damage(folder: Path) -> None:
    for name in (ONE, TWO):
        (folder / name).unlink()
    assert (Weight.DAMAGE, "missing-file", ONE) in codes(folder)
