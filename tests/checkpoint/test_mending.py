"""What `verify` says that mends a checkpoint is true: done, the finding is gone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import fsspec
import pytest

from keepstep.checkpoint.findings import Finding, Verification, Weight
from keepstep.checkpoint.mending import MENDS, mends
from keepstep.checkpoint.store import LocalStore, RemoteStore
from keepstep.checkpoint.verify import verify
from tests.checkpoint.conftest import Checkpoint

_SOURCES = Path(__file__).parent.parent.parent / "src" / "keepstep" / "checkpoint"


def advice(folder: Path) -> dict[str, str]:
    """Return what mends each kind of finding about a folder."""
    store = LocalStore(folder)
    found = verify(store)
    said = mends(store, found)
    return {each.code: text for each, text in zip(found.findings, said, strict=True)}


def test_every_kind_of_finding_has_an_action() -> None:
    text = "".join(path.read_text() for path in _SOURCES.glob("*.py"))
    codes = set(re.findall(r'Finding\(\s*Weight\.\w+,\s*"([a-z-]+)"', text))
    assert len(codes) > 10
    assert codes == MENDS.keys()


def test_damage_points_to_the_newest_other_checkpoint_that_is_complete(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for step in (50, 90, 100):
        checkpoint(name=f"step-{step}")
    (tmp_path / "step-110").mkdir()  # a save that has just begun
    (tmp_path / "latest").symlink_to("step-100")
    os.truncate(tmp_path / "step-100" / "__0_0.distcp", 100)
    for name in ("step-100", "latest"):
        said = advice(tmp_path / name)["short-file"]
        assert said.startswith("bring the file back from a copy")
        assert said.endswith(f"else use another one of the run: {_verify(tmp_path / 'step-90')}")


def test_a_damaged_checkpoint_alone_says_that_there_is_no_other(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / "__0_0.distcp").unlink()
    assert "there is no complete one beside" in advice(folder)["missing-file"]


def test_the_path_is_taken_as_it_was_given(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(name="step-50")
    (checkpoint(name="step-100") / "__0_0.distcp").unlink()
    monkeypatch.chdir(tmp_path)
    wanted = "keepstep checkpoint verify step-50"
    assert advice(Path("step-100"))["missing-file"].endswith(wanted)
    monkeypatch.chdir(tmp_path / "step-100")
    assert advice(Path())["missing-file"].endswith(f"keepstep checkpoint verify {tmp_path}/step-50")


@pytest.mark.parametrize("name", ["step-100", "a run's/step-100"])
def test_what_it_says_to_run_mends(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    folder = checkpoint(name=name)
    shutil.copy2(folder / ".metadata", folder / "__0.metadata")
    shutil.copy2(folder / ".metadata", folder / ".metadata.tmp")
    shutil.copy2(folder / "__0_0.distcp", folder / "__0_1.distcp")
    (folder / ".metadata.unfinished").touch()
    said = advice(folder)
    for code, begin, end in [
        ("stale-rank-metadata", "", ""),
        ("unfinished-save", "where none is: ", "; where they differ"),
        ("stray-file", "is running: ", ""),
        ("unfinished-downgrade", "is running: ", ""),
    ]:
        command = said[code].partition(begin)[2] if begin else said[code]
        subprocess.run(command.partition(end)[0] if end else command, shell=True, check=True)
    assert advice(folder) == {}


def test_a_save_cut_off_at_its_end_is_mended_by_the_recovery_alone(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    assert advice(folder) == {"unfinished-save": f"mv {folder}/.metadata.tmp {folder}/.metadata"}
    (folder / "__0_0.distcp").unlink()
    assert advice(folder)["unfinished-save"].startswith("use another checkpoint")


def test_an_object_store_gets_no_commands_of_a_shell() -> None:
    memory = fsspec.filesystem("memory")
    store = RemoteStore("memory://run/step-100", memory, "/run/step-100")
    found = Verification(
        findings=(
            Finding(Weight.DAMAGE, "unfinished-save", ".metadata.tmp", ""),
            Finding(Weight.NOTE, "stray-file", "__0_1.distcp", ""),
        )
    )
    address = store.address
    assert mends(store, found) == [
        f"copy {address}/.metadata.tmp to {address}/.metadata",
        f"when no save into this folder is running: remove {address}/__0_1.distcp",
    ]


def _verify(folder: Path) -> str:
    return f"keepstep checkpoint verify {folder}"
