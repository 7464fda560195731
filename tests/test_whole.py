"""Files that are there whole or not at all, and what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from keepstep.whole import write_whole


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def parts() -> list[str]:
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_whole(path, (part for _ in range(1) for part in parts()))
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    link = tmp_path / "link"
    link.symlink_to("target")
    write_whole(link, ["after"])
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "after"


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, ["one ", "two"])
    reader.join(10)
    assert read == ["one two"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_never_replaced() -> None:
    null = Path(os.devnull)
    write_whole(null, ["lost"])
    assert stat.S_ISCHR(null.stat().st_mode)
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), ["x"])
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
