"""The newest checkpoint that an older PyTorch could go back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.status import find_status
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.stored_data import data_files
from tests.processor_time import used


def save(root: Path, name: str, fields: int) -> None:
    folder = root / name
    folder.mkdir()
    content = metadata(1, 1, fields=fields)
    for file, data in data_files(content).items():
        (folder / file).write_bytes(data)
    (folder / ".metadata").write_bytes(content)


def test_the_newest_readable_and_how_far_behind_it_is(tmp_path: Path) -> None:
    for step, fields in [(9, 5), (100, 5), (200, 6), (1000, 6)]:
        save(tmp_path, f"step-{step}", fields)
    found = find_status(LocalStore(tmp_path), "2.14")
    assert found.newest is not None
    assert found.newest_readable is not None
    assert (found.newest.name, found.newest_readable.name) == ("step-1000", "step-100")
    assert (found.behind, found.looked_at, found.steps) == (900, 3, 4)


def test_a_version_that_reads_all_needs_one_look(tmp_path: Path) -> None:
    for step in range(5):
        save(tmp_path, f"iter_{step:07}", 6)
    found = find_status(LocalStore(tmp_path), "2.15")
    assert (found.behind, found.looked_at) == (0, 1)


def test_none_is_readable(tmp_path: Path) -> None:
    save(tmp_path, "step-1", 6)
    found = find_status(LocalStore(tmp_path), "2.14")
    assert (found.newest_readable, found.behind) == (None, None)


def test_copies_unfinished_and_damaged_folders_are_not_taken_for_steps(tmp_path: Path) -> None:
    save(tmp_path, "step-100", 5)
    save(tmp_path, "step-200.backup", 5)
    save(tmp_path, "eval-900", 5)
    save(tmp_path, "step-50", 5)
    (tmp_path / "step-300").mkdir()
    save(tmp_path, "step-400", 5)
    (tmp_path / "step-400" / ".metadata").write_bytes(b"damaged")
    found = find_status(LocalStore(tmp_path), "2.14")
    assert found.newest_readable is not None
    assert found.newest_readable.name == "step-100"
    assert found.incomplete == ("step-300",)
    assert len(found.unreadable) == 1


@pytest.mark.parametrize("damage", ["missing", "short", "cut metadata"])
def test_what_nobody_could_load_is_no_way_back(tmp_path: Path, damage: str) -> None:
    save(tmp_path, "step-100", 5)
    save(tmp_path, "step-200", 5)
    folder = tmp_path / "step-200"
    (data,) = folder.glob("*.distcp")
    if damage == "missing":
        data.unlink()
    elif damage == "short":
        data.write_bytes(data.read_bytes()[:-1])
    else:
        content = (folder / ".metadata").read_bytes()
        (folder / ".metadata").write_bytes(content[:-9])
    found = find_status(LocalStore(tmp_path), "2.14")
    assert found.newest_readable is not None
    assert found.newest_readable.name == "step-100"
    assert found.newest == found.newest_readable, "it is no complete checkpoint either"
    (why,) = found.unreadable
    assert why.startswith("step-200: ")


def test_names_of_lightning_share_no_epoch(tmp_path: Path) -> None:
    for name in ("epoch=0-step=90.ckpt", "epoch=0-step=180.ckpt", "epoch=1-step=270.ckpt"):
        save(tmp_path, name, 5)
    found = find_status(LocalStore(tmp_path), "2.14")
    assert found.newest is not None
    assert (found.newest.step, found.steps) == (270, 3)


def test_a_folder_without_steps_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError, match="step-100"):
        find_status(LocalStore(tmp_path), "2.14")


def test_two_thousand_steps_take_a_second_or_so(tmp_path: Path) -> None:
    content = metadata(1, 1, fields=6)
    for step in range(2000):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / ".metadata").write_bytes(content)
    begin = used()
    assert find_status(LocalStore(tmp_path), "2.14").looked_at == 2000
    assert used() - begin < 5
