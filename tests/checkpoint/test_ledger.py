"""The ledger: nothing that was acknowledged is lost, whoever writes and whenever it is killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.ledger import Ledger, LedgerError, ledger_of
from keepstep.checkpoint.store import LocalStore

WRITER = Path(__file__).with_name("ledger_writer.py")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "run").mkdir()
    return ledger_of(LocalStore(tmp_path / "run"))


def add(ledger: Ledger, number: int) -> None:
    with ledger.writing() as pen:
        pen.add("note", number=number)


def numbers(ledger: Ledger) -> list[int]:
    return [entry["number"] for entry in ledger.read()]


def test_it_lies_beside_the_run_and_says_who_and_when(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.read() == []
    add(ledger, 1)
    add(ledger, 2)
    assert sorted(os.listdir(tmp_path)) == ["run", "run.keepstep.jsonl"]
    assert os.listdir(tmp_path / "run") == []
    lines = (tmp_path / "run.keepstep.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ledger.read()
    assert [(e["what"], e["format"], "@" in e["by"]) for e in ledger.read()] == [
        ("note", 1, True),
        ("note", 1, True),
    ]


def test_one_ledger_however_the_path_is_written(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(ledger, 1)
    (tmp_path / "link").symlink_to("run")
    assert numbers(ledger_of(LocalStore(tmp_path / "link"))) == [1]
    monkeypatch.chdir(tmp_path / "run")
    assert numbers(ledger_of(LocalStore(Path(".")))) == [1]


def test_a_line_that_was_cut_off_anywhere_was_never_written(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "run.keepstep.jsonl"
    add(ledger, 1)
    first = path.read_bytes()
    add(ledger, 2)
    whole = path.read_bytes()
    for end in range(len(first), len(whole)):
        for rest in (b"", b"\0" * 9):  # zeros: the size was on the disk before the bytes
            path.write_bytes(whole[:end] + rest)
            assert numbers(ledger) == [1]
            add(ledger, 3)
            assert numbers(ledger) == [1, 3]


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"\n", b'{"format": 1, "what": "note"}\n'])
def test_a_damaged_line_is_never_passed_over(ledger: Ledger, tmp_path: Path, line: bytes) -> None:
    add(ledger, 1)
    path = tmp_path / "run.keepstep.jsonl"
    before = path.read_bytes() + line + path.read_bytes()
    path.write_bytes(before)
    with pytest.raises(LedgerError, match="line 2 is damaged"):
        ledger.read()
    with pytest.raises(LedgerError), ledger.writing():
        pass
    assert path.read_bytes() == before


def test_a_newer_format_is_not_guessed_at(ledger: Ledger, tmp_path: Path) -> None:
    add(ledger, 1)
    path = tmp_path / "run.keepstep.jsonl"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LedgerError, match="newer keepstep"):
        ledger.read()


def test_a_full_disk_leaves_the_ledger_as_it_was(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(ledger, 1)
    write, calls = os.write, []

    def full(handle: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:7])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            add(ledger, 2)
    assert len(calls) == 2
    assert numbers(ledger) == [1]
    add(ledger, 3)
    assert numbers(ledger) == [1, 3]


def test_there_is_no_place_beside_the_root_of_everything() -> None:
    with pytest.raises(CheckpointError, match="beside a run"):
        ledger_of(LocalStore(Path("/")))


def writer(tmp_path: Path, name: str, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, WRITER, tmp_path / "run", name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_writers_at_the_same_time_lose_nothing(ledger: Ledger, tmp_path: Path) -> None:
    processes = {name: writer(tmp_path, name, 25) for name in "abcd"}
    for process in processes.values():
        start(process)
    for process in processes.values():
        process.communicate()
        assert process.returncode == 0
    entries = [(entry["name"], entry["number"]) for entry in ledger.read()]
    assert sorted(entries) == [(name, number) for name in "abcd" for number in range(25)]
    for name in processes:  # and each in its own order
        assert [number for who, number in entries if who == name] == list(range(25))


def test_what_a_killed_writer_was_told_of_is_there(ledger: Ledger, tmp_path: Path) -> None:
    steady = writer(tmp_path, "steady", 300)
    start(steady)
    acknowledged: dict[str, int] = {}
    for attempt in range(8):
        name = f"killed-{attempt}"
        process = writer(tmp_path, name, 10_000)
        start(process)
        assert process.stdout is not None
        for _ in range(attempt + 1):
            acknowledged[name] = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        acknowledged[name] = max([acknowledged[name], *map(int, rest.split())])
    told, _ = steady.communicate()
    assert told.split() == [str(number) for number in range(300)]
    found: dict[str, list[int]] = {}
    for entry in ledger.read():
        found.setdefault(entry["name"], []).append(entry["number"])
    assert found.pop("steady") == list(range(300))
    for name, last in acknowledged.items():
        # One more may be there: written, and killed before it could say so.
        assert found[name] in (list(range(last + 1)), list(range(last + 2)))
