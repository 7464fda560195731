"""Trees of dumps: whose each file is, which attempt it belongs to, and what is a duplicate."""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstep.recorder import pool, read
from keepstep.recorder.model import Backend, RankDump
from keepstep.recorder.place import places
from keepstep.recorder.read import Reading, read_file, read_tree
from tests.recorder.writing import T0, as_json, as_pickle, as_version, dump, row


def of(rank: int = 0, at: int = 0, backend: str = "nccl2", **changes: Any) -> bytes:
    """Return a dump that differs by rank and by time."""
    rows = [
        row(n, time_created_ns=T0 + at + rank, profiling_name=f"{backend}:all_reduce")
        for n in range(2)
    ]
    return as_pickle(dump(rows, **changes))


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def owners(reading: Reading) -> list[tuple[str, int | None, str | None]]:
    return [(d.attempt, d.rank, d.host) for d in reading.dumps]


def codes(reading: Reading) -> list[str]:
    return [finding.code for finding in reading.findings]


# What a path says


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_3", 3),
        ("nccl_trace_rank_12", 12),
        ("_dump_7", 7),
        ("_dump_7.json", 7),
        ("rank_0.json", 0),
        ("rank3.pickle", 3),
        ("trace.rank-5.pkl", 5),
        ("node-12_nccl_trace_rank_4", 4),
        ("nccl_trace_rank_node-12_5", 5),
        ("RANK_2_of_host7", 2),
        ("rank_3_attempt_2", 3),
        ("job_12_rank_3", 3),
        ("run_3", 3),
        ("rank_3-20260915-1200", 3),
        ("dump", None),
    ],
)
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    (place,) = places([(name,)])
    assert next(iter(place.ranks), None) == rank


def test_of_two_numbers_the_one_that_varies_is_the_rank() -> None:
    found = places([("trace_rank0_0",), ("trace_rank0_1",), ("trace_rank0_2",)])
    assert [place.ranks[0] for place in found] == [0, 1, 2]
    found = places([("rank_0_v2",), ("rank_1_v2",)])
    assert [place.ranks[0] for place in found] == [0, 1]


@pytest.mark.parametrize(
    ("files", "hosts"),
    [
        (["a1/rank_0", "b2/rank_1"], ["a1", "b2"]),
        (["dumps/rank_0", "logs/x/rank_1"], [None, None]),
        (["h1/dumps/rank_0", "h2/dumps/rank_1"], ["h1", "h2"]),
        (["only/rank_0", "only/rank_1"], [None, None]),
        (["node-1_trace_rank_0", "node-2_trace_rank_1"], ["node-1", "node-2"]),
        (["trace_rank_node-1_0", "trace_rank_node-2_1"], ["node-1", "node-2"]),
        (["mytrain_rank_0", "mytrain_rank_1"], [None, None]),
        (["0/rank_0", "1/rank_1"], [None, None]),
        (["gpu1.tar.gz/rank_0", "gpu2.zip/rank_1"], ["gpu1", "gpu2"]),
    ],
)
def test_hosts(files: list[str], hosts: list[str | None]) -> None:
    assert [place.host for place in places([tuple(f.split("/")) for f in files])] == hosts


@pytest.mark.parametrize(
    ("file", "attempt"),
    [
        ("attempt_0/rank_0", "attempt_0"),
        ("h1/attempt_1/rank_0", "attempt_1"),
        ("restart-2/h1/rank_0", "restart-2"),
        ("20260915_120000/rank_0", "20260915_120000"),
        ("2026-09-15T12:00:00Z/rank_0", "2026-09-15T12:00:00Z"),
        ("job_5/attempt_1/rank_0", "job_5/attempt_1"),
        ("rank_0_attempt_3", "attempt_3"),
        ("h1/rank_0", ""),
        ("0/rank_0", ""),
    ],
)
def test_attempts(file: str, attempt: str) -> None:
    (place,) = places([tuple(file.split("/"))])
    assert place.attempt == attempt


# Trees


def test_one_folder_per_host(tmp_path: Path) -> None:
    write(tmp_path, {f"host{r // 2}/trace_rank_{r}": of(r) for r in range(4)})
    reading = read_tree(tmp_path)
    assert owners(reading) == [("", r, f"host{r // 2}") for r in range(4)]
    assert reading.findings == ()


def test_attempts_are_kept_apart(tmp_path: Path) -> None:
    files = {f"attempt_{a}/h{r}/rank_{r}": of(r, at=a * 10**9) for a in range(2) for r in range(2)}
    assert owners(read_tree(write(tmp_path, files))) == [
        (f"attempt_{a}", r, f"h{r}") for a in range(2) for r in range(2)
    ]


def test_folders_that_disagree_about_a_rank_are_attempts(tmp_path: Path) -> None:
    files = {f"{f}/rank_{r}": of(r, at=n * 10**9) for n, f in enumerate("ab") for r in range(3)}
    assert owners(read_tree(write(tmp_path, files))) == [
        (folder, r, None) for folder in "ab" for r in range(3)
    ]


def test_hosts_inside_of_folders_that_disagree_stay_hosts(tmp_path: Path) -> None:
    files = {
        f"{f}/h{r}/rank_{r}": of(r, at=n * 10**9) for n, f in enumerate("ab") for r in range(2)
    }
    assert owners(read_tree(write(tmp_path, files))) == [
        (folder, r, f"h{r}") for folder in "ab" for r in range(2)
    ]


def test_a_copied_folder_is_a_duplicate_not_an_attempt(tmp_path: Path) -> None:
    files = {f"{folder}/rank_{r}": of(r) for folder in ("a", "copy") for r in range(2)}
    reading = read_tree(write(tmp_path, files))
    assert [d.rank for d in reading.dumps] == [0, 1]
    assert codes(reading) == ["duplicate", "duplicate"]


def test_pickle_and_json_of_one_rank_are_one_dump_with_stacks(tmp_path: Path) -> None:
    newest = dump([row(0), row(1)])
    write(tmp_path, {"trace_rank_0": as_pickle(newest), "rank_0.json": as_json(newest)})
    reading = read_tree(tmp_path)
    assert [d.path.name for d in reading.dumps] == ["trace_rank_0"]
    assert codes(reading) == ["duplicate"]


def test_of_two_dumps_of_one_rank_in_a_folder_the_newer_counts(tmp_path: Path) -> None:
    write(tmp_path, {"nccl_trace_rank_0": of(0), "comm_lib_trace_rank_0": of(0, at=10**12)})
    reading = read_tree(tmp_path)
    assert [d.path.name for d in reading.dumps] == ["comm_lib_trace_rank_0"]
    (finding,) = reading.findings
    assert (finding.code, finding.severity) == ("duplicate", "warning")


def test_dumps_of_two_backends_of_one_rank_both_count(tmp_path: Path) -> None:
    write(tmp_path, {"nccl/rank_0": of(0), "gloo/rank_0": of(0, backend="gloo")})
    reading = read_tree(tmp_path)
    assert [(d.rank, d.dump.backend) for d in reading.dumps] == [
        (0, Backend.GLOO),
        (0, Backend.NCCL2),
    ]


def test_an_empty_dump_of_the_wrong_recorder_gives_way(tmp_path: Path) -> None:
    empty = as_json(dump([], pg_status={}))
    write(tmp_path, {"trace_rank_0": of(0), "rank_0.json": empty})
    reading = read_tree(tmp_path)
    assert [d.dump.backend for d in reading.dumps] == [Backend.NCCL2]
    assert sorted(codes(reading)) == ["duplicate", "nothing-recorded"]


def test_mixed_versions_are_read_together(tmp_path: Path) -> None:
    newest = dump([row()])
    write(
        tmp_path,
        {f"rank_{n}": as_pickle(as_version(newest, v)) for n, v in enumerate(("2.3", "2.10"))},
    )
    assert [d.dump.version for d in read_tree(tmp_path).dumps] == ["2.3", "2.10"]


def test_a_name_that_contradicts_the_groups_is_reported(tmp_path: Path) -> None:
    reading = read_tree(write(tmp_path, {"rank_9": of(0)}))
    assert owners(reading) == [("", 9, None)]
    assert codes(reading) == ["wrong-rank"]


def test_the_groups_choose_between_two_numbers(tmp_path: Path) -> None:
    assert owners(read_tree(write(tmp_path, {"rank_17_3": of(3)}))) == [("", 3, None)]


def test_a_file_without_a_number_gets_its_rank_from_groups_that_share_one(tmp_path: Path) -> None:
    config = {
        name: {"name": name, "desc": "", "ranks": ranks}
        for name, ranks in (("0", "[0, 1, 2, 3]"), ("1", "[2, 3]"), ("2", "[0, 2]"))
    }
    reading = read_tree(write(tmp_path, {"trace": of(pg_config=config)}))
    assert owners(reading) == [("", 2, None)]
    assert codes(reading) == ["rank-from-groups"]


def test_a_rank_that_nothing_says_is_reported(tmp_path: Path) -> None:
    reading = read_tree(write(tmp_path, {"trace": of()}))
    assert owners(reading) == [("", None, None)]
    assert codes(reading) == ["rank-unknown"]


def test_point_to_point_operations_of_another_rank_are_reported(tmp_path: Path) -> None:
    rows = [row(profiling_name="nccl2:send 1->2", is_p2p=True)]
    reading = read_tree(write(tmp_path, {"rank_1": as_pickle(dump(rows))}))
    assert codes(reading) == []
    reading = read_tree(write(tmp_path, {"rank_1": b"", "rank_2": as_pickle(dump(rows))}))
    assert codes(reading) == ["empty", "wrong-rank"]


def test_a_folder_without_dumps_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"train.log": b"step 1\n"})
    reading = read_tree(tmp_path)
    assert reading.dumps == ()
    assert sorted((f.code, str(f.severity)) for f in reading.findings) == [
        ("foreign", "note"),
        ("no-dump", "error"),
    ]


def test_names_that_are_no_text_are_read_and_printable(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff_rank_0"
    with open(path, "wb") as file:
        file.write(b"")
    (empty, _) = sorted(read_tree(tmp_path).findings, key=lambda f: f.code)
    assert empty.path.encode().decode().isprintable()
    with open(path, "wb") as file:
        file.write(of())
    assert owners(read_tree(tmp_path)) == [("", 0, None)]


def archived(kind: str, path: Path, files: dict[str, bytes]) -> None:
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return
    with tarfile.open(path, "w" if kind == "tar" else "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tgz", "zip"])
def test_archives_read_as_the_folder_that_they_hold(tmp_path: Path, kind: str) -> None:
    files = {f"host{r // 2}/trace_rank_{r}": of(r) for r in range(4)} | {"host0/train.log": b"x"}
    archived(kind, tmp_path / f"dumps.{kind}", files)
    folder = write(tmp_path / "folder", files)
    packed, plain = read_tree(tmp_path / f"dumps.{kind}"), read_tree(folder)
    assert owners(packed) == owners(plain)
    assert [d.dump for d in packed.dumps] == [d.dump for d in plain.dumps]
    assert codes(packed) == codes(plain) == ["foreign"]


def test_an_archive_per_host(tmp_path: Path) -> None:
    for host in range(2):
        archived("tar.gz", tmp_path / f"gpu-{host}.tar.gz", {f"trace_rank_{host}": of(host)})
    assert owners(read_tree(tmp_path)) == [("", 0, "gpu-0"), ("", 1, "gpu-1")]


def test_read_file(tmp_path: Path) -> None:
    write(tmp_path, {"good": of(), "bad": of()[:-1]})
    good, bad = read_file(tmp_path / "good"), read_file(str(tmp_path / "bad"))
    assert good.dump is not None
    assert (len(good.dump.entries), good.findings) == (2, ())
    assert bad.dump is None
    assert [finding.code for finding in bad.findings] == ["truncated"]


def shuffled_walk(seed: int) -> Any:
    walk = os.walk

    def walked(*args: Any, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, names in walk(*args, **options):
            random.Random(seed).shuffle(names)
            random.Random(seed + 1).shuffle(folders)
            yield folder, folders, names

    return walked


def test_the_order_of_the_file_system_and_of_the_answers_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{f}/rank_{r}": of(r, at=n * 10**9) for n, f in enumerate("ab") for r in range(3)}
    newest = dump([row()])
    files |= {"a/rank_0.json": as_json(newest), "a/x_rank_1": of(1), "b/rank_7": b"", "b/u": of(2)}
    write(tmp_path, files)
    expected = read_tree(tmp_path)
    assert len(expected.dumps) == 7
    answers = pool.read
    for seed in range(4):
        monkeypatch.setattr(os, "walk", shuffled_walk(seed))

        def jumbled(tasks: Any, workers: Any, seed: int = seed) -> list[pool.Answer]:
            found = list(answers(tasks, workers))
            random.Random(seed).shuffle(found)
            return found

        monkeypatch.setattr(pool, "read", jumbled)
        assert read_tree(tmp_path) == expected


def test_a_process_that_cannot_start_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    reading = read.read_tree(write(tmp_path, {"rank_0": of()}))
    assert sorted(codes(reading)) == ["no-dump", "not-read"]


def test_leaving_early_leaves_no_process(tmp_path: Path) -> None:
    write(tmp_path, {f"rank_{r}": of(r) for r in range(20)})
    tasks = [pool.Task(str(path)) for path in sorted(tmp_path.iterdir())]
    answers = pool.read(tasks, 2)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [c for c in children if b"keepstep.recorder.child" in command(c)]


def command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def only(dumps: tuple[RankDump, ...]) -> RankDump:
    (found,) = dumps
    return found


def test_a_single_dump_is_a_tree(tmp_path: Path) -> None:
    write(tmp_path, {"rank_2": of(2)})
    assert only(read_tree(tmp_path / "rank_2").dumps).rank == 2
