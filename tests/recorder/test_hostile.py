"""Files that want more than to be read: nothing in them is executed, and all become findings."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.recorder import limits, read
from keepstep.recorder.model import Severity
from tests.recorder.writing import as_json, as_pickle, dump, row

GOOD = as_pickle(dump([row(0), row(1)]))


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


def calling(mark: Path, protocol: int) -> bytes:
    return pickle.dumps({"entries": [Calls(os.mkdir, str(mark))]}, protocol)


def raw(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts)


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def doubling(levels: int) -> bytes:
    """Return lists of lists of ... each twice the same one: small in the file, huge when walked."""
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner, inner]
    return pickle.dumps(dump([row(input_sizes=[inner])]), 2)


def many_references() -> bytes:
    """Return one entry with a million dimensions that is there a thousand times."""
    shapes = [[1] * 1000] * 1000
    entry = row(input_sizes=shapes)
    return pickle.dumps(dump([entry] * 1000), 2)


def cyclic() -> bytes:
    cycle: list[Any] = []
    cycle.append(cycle)
    return pickle.dumps(dump([row(input_sizes=cycle)]), 2)


# name -> (bytes for a mark that must not appear, codes that a finding may have)
HOSTILE: dict[str, tuple[Callable[[Path], bytes], set[str]]] = {
    "reduce, protocol 2": (lambda mark: calling(mark, 2), {"hostile"}),
    "reduce, protocol 3": (lambda mark: calling(mark, 3), {"hostile"}),
    "reduce, protocol 4": (lambda mark: calling(mark, 4), {"hostile"}),
    "reduce, protocol 5": (lambda mark: calling(mark, 5), {"hostile"}),
    "reduce, protocol 0": (lambda mark: calling(mark, 0), {"foreign", "hostile"}),
    "reduce, protocol 0 behind a header": (
        lambda mark: b"\x80\x02" + calling(mark, 0),
        {"hostile"},
    ),
    "global": (lambda mark: raw(b"cos\nsystem\n(", text(f"mkdir {mark}"), b"tR."), {"hostile"}),
    "stack global": (
        lambda mark: raw(text("os"), text("system"), b"\x93(", text(f"mkdir {mark}"), b"tR."),
        {"hostile"},
    ),
    "inst": (lambda mark: raw(b"(", text(f"mkdir {mark}"), b"ios\nsystem\n."), {"hostile"}),
    "obj": (lambda mark: raw(b"(cos\nsystem\n", text(f"mkdir {mark}"), b"o."), {"hostile"}),
    "newobj": (lambda mark: raw(b"cbuiltins\nobject\n)\x81."), {"hostile"}),
    "eval": (lambda mark: pickle.dumps(Calls(builtins.eval, "1"), 2), {"hostile"}),
    "exec inside a good dump": (
        lambda mark: pickle.dumps(dump([row(frames=Calls(os.mkdir, str(mark)))]), 2),
        {"hostile"},
    ),
    "a name of this program": (
        lambda mark: raw(b"ckeepstep.recorder.read\nread_tree\n(", text(str(mark)), b"tR."),
        {"hostile"},
    ),
    "persistent id": (lambda mark: raw(text("x"), b"Q."), {"hostile"}),
    "persistent id in text": (lambda mark: raw(b"Pname\n."), {"hostile"}),
    "extension": (lambda mark: raw(b"\x82\x01."), {"malformed"}),
    "call of a text": (lambda mark: raw(text("os.system"), text("a"), b"\x85R."), {"malformed"}),
    "state for a dictionary": (
        lambda mark: raw(b"}(", text("__class__"), text("x"), b"ub}(K\x01K\x02ub."),
        {"malformed", "foreign"},
    ),
    "outside buffer": (lambda mark: b"\x80\x05\x97.", {"malformed"}),
    "huge memo": (
        lambda mark: raw(b"}r", struct.pack("<I", (1 << 31) - 1), b"."),
        {"too-large", "foreign", "hostile"},
    ),
    "huge text": (
        lambda mark: raw(b"\x8d", struct.pack("<Q", 1 << 60), b"a."),
        {"truncated", "too-large"},
    ),
    "huge bytes": (
        lambda mark: b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        {"truncated", "too-large", "malformed"},
    ),
    "huge frame": (
        lambda mark: b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
        {"truncated", "malformed", "too-large"},
    ),
    "giant number": (
        lambda mark: raw(b"\x8b", struct.pack("<i", 1 << 20), b"\x7f" * (1 << 20), b"."),
        {"foreign"},
    ),
    "giant number in text": (lambda mark: raw(b"L" + b"9" * 2_000_000 + b"L\n."), {"malformed"}),
    "deep lists": (lambda mark: raw(b"]" * 1_000_000, b"a" * 999_999, b"."), {"foreign"}),
    "deep tuples": (lambda mark: raw(b")", b"\x85" * 1_000_000, b"."), {"foreign"}),
    "doubling lists": (lambda mark: doubling(60), {"malformed"}),
    "many references": (lambda mark: many_references(), {"too-large"}),
    "a list in itself": (lambda mark: cyclic(), {"malformed"}),
    "empty stack": (lambda mark: raw(b"."), {"malformed"}),
    "no end": (lambda mark: GOOD[:-1], {"truncated"}),
    "half": (lambda mark: GOOD[: len(GOOD) // 2], {"truncated", "malformed"}),
    "87 bytes": (lambda mark: GOOD[:87], {"truncated"}),
    "nothing": (lambda mark: b"", {"empty"}),
    "zeros": (lambda mark: bytes(5000), {"truncated"}),
    "zeros at the end": (lambda mark: GOOD[:700] + bytes(5000), {"truncated", "malformed"}),
    "a picture": (lambda mark: b"\x89PNG\r\n\x1a\n" + bytes(range(256)), {"foreign"}),
    "a script": (lambda mark: f"import os\nos.mkdir({str(mark)!r})\n".encode(), {"foreign"}),
    "a shell script": (lambda mark: f"#!/bin/sh\nmkdir {mark}\n".encode(), {"foreign"}),
    "a log": (lambda mark: b"[rank0] Watchdog caught collective operation timeout\n", {"foreign"}),
    "another pickle": (lambda mark: pickle.dumps([1, 2, 3], 2), {"foreign"}),
    "another dictionary": (lambda mark: pickle.dumps({"model": [1.0]}, 2), {"foreign"}),
    "other JSON": (lambda mark: b'{"loss": 1}', {"foreign"}),
    "half JSON": (lambda mark: as_json(dump([row()]))[:200], {"truncated"}),
    "deep JSON": (lambda mark: b"[" * 1_000_000, {"malformed", "truncated"}),
    "JSON with a giant number": (
        lambda mark: b'{"entries": [' + b"9" * 100_000 + b"]}",
        {"malformed"},
    ),
    "JSON with NaN": (
        lambda mark: as_json(dump([row(duration_ms=float("nan"))])),
        {"malformed"},
    ),
    "JSON that is no text": (lambda mark: b'{"entries": "\xff\xfe"}', {"malformed"}),
    "JSON with half a character": (
        lambda mark: as_json(dump([row(profiling_name="nccl:\ud800")])),
        {"malformed"},
    ),
}


def test_no_hostile_file_does_anything_or_disturbs_the_others(tmp_path: Path) -> None:
    assert len(HOSTILE) >= 25
    folder = tmp_path / "dumps"
    folder.mkdir()
    marks = {}
    for number, (name, (content, _)) in enumerate(HOSTILE.items()):
        marks[name] = tmp_path / f"mark{number}"
        (folder / f"trace_rank_{number + 10}").write_bytes(content(marks[name]))
    (folder / "trace_rank_1").write_bytes(GOOD)
    (folder / "trace_rank_2").write_bytes(GOOD)

    reading = read.read_tree(folder)

    assert [(d.rank, len(d.dump.entries)) for d in reading.dumps] == [(1, 2), (2, 2)]
    found = {finding.path: finding for finding in reading.findings}
    for number, (name, (_, codes)) in enumerate(HOSTILE.items()):
        finding = found[str(folder / f"trace_rank_{number + 10}")]
        assert finding.code in codes, (name, finding)
        assert finding.severity is Severity.ERROR
        assert finding.text.isprintable(), name
        assert not marks[name].exists(), name
    assert set(tmp_path.iterdir()) == {folder}


def test_the_sample_would_be_executed_by_an_ordinary_reader(tmp_path: Path) -> None:
    pickle.loads(calling(tmp_path / "mark", 2))
    assert (tmp_path / "mark").is_dir()


def test_a_hostile_file_is_named_with_what_it_wanted(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(Calls(os.system, "true"), 2))
    (finding,) = read.read_file(path).findings
    assert (finding.code, finding.path) == ("hostile", str(path))
    assert finding.text == "the pickle wants to load 'posix.system'"


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    began = time.monotonic()
    (finding,) = read.read_file(path).findings
    assert time.monotonic() - began < 1
    assert finding.code == "too-large"


def test_pipes_and_links_to_nowhere_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0")
    (tmp_path / "rank_1").symlink_to(tmp_path / "missing")
    (tmp_path / "rank_2").symlink_to("/dev/zero")
    (tmp_path / "rank_3").write_bytes(GOOD)
    (tmp_path / "loop").symlink_to(tmp_path)
    reading = read.read_tree(tmp_path)
    assert [d.rank for d in reading.dumps] == [3]
    assert {f.code for f in reading.findings} == {"not-a-file", "unreadable"}


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist; wanted: a dump"):
        read.read_tree(tmp_path / "nothing")


# Archives


def tar_of(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_members_with_tricky_names_are_read_and_never_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    names = ["../../evil_rank_0", "/etc/rank_1", "a/../../rank_2", "rank_3"]
    tar_of(folder / "d.tar.gz", [(name, GOOD) for name in names])
    reading = read.read_tree(folder)
    assert [d.rank for d in reading.dumps] == [0, 1, 2, 3]
    assert all(folder in d.path.parents for d in reading.dumps)
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "d.tar.gz"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_member_that_unpacks_to_too_much_is_refused_and_the_rest_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = bytes(limits.FILE_BYTES + 1)
    path = tmp_path / ("d.zip" if kind == "zip" else "d.tar.gz")
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("rank_0", bomb)
            archive.writestr("rank_1", GOOD)
    else:
        tar_of(path, [("rank_0", bomb), ("rank_1", GOOD)])
    assert path.stat().st_size < 5 << 20
    reading = read.read_tree(path)
    assert [d.rank for d in reading.dumps] == [1]
    assert [(f.code, Path(f.path).name) for f in reading.findings] == [("too-large", "rank_0")]


def test_a_member_that_ends_the_reading_process_does_not_end_the_archive(tmp_path: Path) -> None:
    memo = raw(*(b"}r" + struct.pack("<I", (1 << 31) - 1 - n) for n in range(3)), b".")
    path = tmp_path / "d.tar.gz"
    tar_of(path, [("rank_0", GOOD), ("rank_1", memo), ("rank_2", GOOD)])
    reading = read.read_tree(path)
    assert [d.rank for d in reading.dumps] == [0, 2]
    assert len(reading.findings) == 1


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("d.zip", b"PK\x03\x04 and no more", "truncated"),
        ("d.zip", b"", "truncated"),
        ("d.tar.gz", b"\x1f\x8b\x08 and no more", "truncated"),
        ("d.tar.gz", b"text", "malformed"),
        ("d.tar", b"x" * 600, "truncated"),
    ],
)
def test_a_broken_archive_is_a_finding(
    tmp_path: Path, name: str, content: bytes, code: str
) -> None:
    (tmp_path / name).write_bytes(content)
    reading = read.read_tree(tmp_path)
    assert [f.code for f in reading.findings if f.code != "no-dump"] == [code]


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "d.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("rank_0")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    codes = [finding.code for finding in read.read_tree(path).findings]
    assert codes == ["no-dump", "not-a-file"]
