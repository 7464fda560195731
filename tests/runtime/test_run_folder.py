"""What a killed run left in memory goes with the next one; what anybody still uses stays."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from keepstep.runtime.run_folder import RunFolder, remove_leftovers

MAKES_ONE = """
import sys
from pathlib import Path
from keepstep.runtime.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
(folder.path / "vault").mkdir()
(folder.path / "vault" / "rank-0.0").write_bytes(b"record")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_when_its_process_was_killed_and_not_before(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        remove_leftovers(tmp_path)
        assert (folder / "vault" / "rank-0.0").exists()
        process.kill()
        process.wait()
        assert folder.exists(), "a killed process cannot clean up"
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_got_the_number_of_the_dead_one_does_not_keep_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / f"keepstep-{os.getpid()}-1-abc").mkdir()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_process_this_container_does_not_see_stays(tmp_path: Path) -> None:
    folder = tmp_path / "keepstep-999999999-1-abc"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_leftovers(tmp_path)
    assert folder.exists()
    os.close(descriptor)
    remove_leftovers(tmp_path)
    assert not folder.exists()


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    mine = tmp_path / "home"
    (mine / "kept").mkdir(parents=True)
    others = ["keepstep-notes", "keepstep-999999999-1", "keepstep-999999999-1-a.b"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "keepstep-999999999-1-link").symlink_to(mine)
    (tmp_path / "keepstep-999999999-1-file").write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (mine / "kept").exists()


def test_a_run_removes_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.path / "vault").mkdir()
    remove_leftovers(tmp_path)
    assert (folder.path / "vault").exists()
    folder.remove()
    assert list(tmp_path.iterdir()) == []
