"""The file of events: whole lines, and a job that does not end with its disk."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.runtime.event_file import EventFile

FACT = {"event": "resumed", "step": 41}


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process becomes longer than this number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield 100
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


def test_what_was_cut_short_spoils_no_other_line(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    assert file.append([FACT, FACT]) == ""
    assert "bytes could be written" in file.append([FACT, FACT])
    assert path.stat().st_size == small_files
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    assert file.append([FACT]) == ""
    *first, cut, last = lines(path)
    assert [json.loads(line) for line in (*first, last)] == [FACT] * len((*first, last))
    assert not cut.endswith("}")
