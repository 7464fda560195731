"""The file of events: whole lines, and a job that does not end with its disk."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.runtime.event_file import EventFile

FACT = {"event": "resumed", "step": 41}


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """No file of this process becomes longer than ``size`` bytes, also none that pytest writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_facts_are_lines_of_json_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        assert EventFile(path).append([FACT, FACT]) == ""
    assert [json.loads(line) for line in lines(path)] == [FACT] * 4


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert EventFile(None).append([FACT]) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_once() -> None:
    file = EventFile("/dev/full")
    assert file.append([FACT]) == "/dev/full: No space left on device"
    assert file.append([FACT]) == ""


def test_a_folder_that_went_away_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "events.jsonl"
    file = EventFile(path)
    assert "No such file or directory" in file.append([FACT])
    path.parent.mkdir()
    assert file.append([FACT]) == ""
    assert [json.loads(line) for line in lines(path)] == [FACT]
    path.unlink()
    path.parent.rmdir()
    assert "No such file or directory" in file.append([FACT]), "there was room in between"


@pytest.mark.parametrize("next_writer", ["the same", "another process"])
def test_what_was_cut_short_spoils_no_other_line(tmp_path: Path, next_writer: str) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    assert file.append([FACT, FACT]) == ""
    with no_file_beyond(100):
        why = file.append([FACT, FACT])
    assert "bytes could be written" in why
    assert path.stat().st_size == 100
    after = file if next_writer == "the same" else EventFile(path)
    assert after.append([FACT]) == ""
    *first, cut, last = lines(path)
    assert [json.loads(line) for line in (*first, last)] == [FACT] * len((*first, last))
    assert not cut.endswith("}")


def test_a_pipe_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "No such device or address" in EventFile(path).append([FACT])


def test_a_pipe_that_is_full_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = EventFile(path)
    try:
        told = [why for _ in range(2000) if (why := file.append([FACT] * 20))]
        assert len(told) == 1, "a loss is told once"
        assert json.loads(os.read(reader, 1 << 16).splitlines()[0]) == FACT
    finally:
        os.close(reader)
