"""The folder of a rehearsal: whole records, one owner, nothing of another plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.canary.record import Outcome, RunRecord
from keepstep.rehearsal.folder import DamagedHeadError, Folder, Head, OtherRehearsalError, only_one

HEAD = Head(plan_sha256="0" * 64, started="2026-11-30T09:00:00+00:00", keepstep="0.1")


def run(pair: int) -> RunRecord:
    return RunRecord(
        cell="dp/2.15/gloo",
        pair=pair,
        order=pair,
        started="2026-11-30T09:00:00+00:00",
        seconds=5.5,
        outcome=Outcome.COMPLETE,
    )


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    with only_one(tmp_path / "new") as folder:
        folder.write_head(HEAD, "format = 1\n")
        folder.write_run(run(1))
        assert folder.read_head() == HEAD
        assert folder.read_run("dp/2.15/gloo", 1) == run(1)
        assert folder.read_run("dp/2.15/gloo", 2) is None


@pytest.mark.parametrize("keep", [0, 1, 40])
def test_a_record_that_was_cut_off_is_a_run_to_be_made_again(tmp_path: Path, keep: int) -> None:
    folder = Folder(tmp_path)
    folder.write_run(run(0))
    path = folder.run_folder("dp/2.15/gloo", 0).with_suffix(".json")
    path.write_bytes(path.read_bytes()[:keep])
    assert folder.read_run("dp/2.15/gloo", 0) is None
    assert path.with_name("0.json.damaged").exists()


def test_a_folder_in_the_place_of_a_record_is_put_away(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = folder.run_file("dp/2.15/gloo", 0)
    path.mkdir(parents=True)
    assert folder.read_run("dp/2.15/gloo", 0) is None
    assert path.with_name("0.json.damaged").is_dir()
    (tmp_path / "rehearsal.json").mkdir()
    with pytest.raises(DamagedHeadError, match="damaged"):
        folder.read_head()
    folder.write_head(HEAD, "format = 1\n")
    assert folder.read_head() == HEAD
    assert (tmp_path / "rehearsal.json.damaged").is_dir()


def test_a_folder_in_the_place_of_the_plan_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").mkdir()
    assert not Folder(tmp_path).has_plan(HEAD.plan_sha256)


def test_two_rehearsals_cannot_share_a_folder(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(OtherRehearsalError, match="at work"):  # noqa: SIM117
        with only_one(tmp_path):
            pass


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OtherRehearsalError, match=r"thesis\.tex.*--out"), only_one(tmp_path):
        pass


def test_it_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        with only_one(tmp_path) as folder:
            folder.write_head(HEAD, "")
