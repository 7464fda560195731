"""What a rank leaves when it is asked: of this moment, or nothing."""

from __future__ import annotations

import errno
import faulthandler
import os
from pathlib import Path

import pytest

from keepstep.recorder.read import read_file
from keepstep.runtime import vault, witness


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_rank_leaves_its_dump_and_its_stacks(tmp_path: Path) -> None:
    witness.testify(tmp_path, 3, 1, "gloo")
    assert left(tmp_path) == ["dump-3.1", "stacks-3.1"]
    assert read_file(vault.dump_path(tmp_path, 3, 1)).dump is not None
    assert __file__ in vault.stacks_path(tmp_path, 3, 1).read_text()


@pytest.mark.parametrize("part", ["dump", "stacks"])
def test_an_answer_that_fails_does_not_leave_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    witness.testify(tmp_path, 3, 1, "gloo")
    witness.testify(tmp_path, 4, 1, "gloo")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if part == "dump":
        monkeypatch.setattr(Path, "write_bytes", full)
    else:
        monkeypatch.setattr(faulthandler, "dump_traceback", full)
    with pytest.raises(OSError, match="No space"):
        witness.testify(tmp_path, 3, 1, "gloo")
    assert left(tmp_path) == ["dump-4.1", "stacks-4.1"], "nor anything of another rank"
