"""Dumps as somebody finds them: missing, old, another rank's, damaged, or what was due."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from keepstep.canary.verdict import Verdict
from keepstep.drills.artifacts import (
    Artifact,
    How,
    as_known,
    compared,
    look_at,
    place_of_jobs,
    prove_artifacts,
)
from keepstep.drills.expected import Dump, expected
from keepstep.drills.notebook import Notebook

DUMPS = Path(__file__).parent.parent / "data" / "recorder" / "gloo-2.15"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "asked").mkdir()
    return Path(
        shutil.copyfile(DUMPS / "comm_lib_trace_rank_0", tmp_path / "asked" / "trace_rank_0")
    )


def look(path: Path, operations: int | None = None, started: float | None = None) -> Artifact:
    begun = time.time() - 60 if started is None else started
    known = look_at(
        path, path.parent.parent, rank=0, how="asked", operations=0, started=begun
    ).operations
    return look_at(
        path,
        path.parent.parent,
        rank=0,
        how="asked",
        operations=known if operations is None else operations,
        started=begun,
    )


def test_a_dump_that_was_due(dump: Path) -> None:
    found = look(dump)
    assert found.usable, found.reason
    assert found.path == "asked/trace_rank_0"
    assert found.size == dump.stat().st_size
    assert found.owner
    assert found.mount_point.startswith("/")
    assert found.last


def test_nothing_there(dump: Path) -> None:
    dump.unlink()
    found = look(dump)
    assert not found.arrived
    assert not found.usable


def test_a_dump_of_an_earlier_run(dump: Path) -> None:
    os.utime(dump, (time.time() - 3600, time.time() - 3600))
    assert "before the run" in look(dump).reason


def test_a_dump_of_another_rank(dump: Path) -> None:
    assert "another rank's" in look(dump, operations=99).reason


def test_a_dump_without_any_collective(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.drills.artifacts.OPERATION", "no_such_operation")
    assert "nothing was recorded" in look(dump, operations=4).reason


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04"])
def test_a_damaged_dump(dump: Path, content: bytes) -> None:
    dump.write_bytes(content)
    found = look(dump)
    assert found.arrived
    assert not found.usable


def test_a_dump_cut_off(dump: Path) -> None:
    dump.write_bytes(dump.read_bytes()[:-20])
    assert not look(dump).usable


def test_other_bytes_than_its_rank_has_written(dump: Path) -> None:
    found = look(dump)
    assert compared(found, found.sha256).usable
    assert not compared(found, "0" * 64).usable


def artifact(*, arrived: bool, reason: str = "", rank: int = 0, how: How = "by itself") -> Artifact:
    return Artifact(rank=rank, how=how, path=f"{how}/{rank}", arrived=arrived, reason=reason)


@pytest.mark.parametrize(
    ("arrived", "reason", "due", "wanted"),
    [
        (True, "", Dump.WRITTEN, True),
        (False, "gone", Dump.WRITTEN, False),
        (False, "gone", Dump.ABSENT, True),
        (True, "", Dump.ABSENT, True),
        (True, "damaged", Dump.ABSENT, False),
        (True, "damaged", Dump.UNKNOWN, False),
        (True, "", Dump.UNKNOWN, True),
        (False, "gone", Dump.UNKNOWN, None),
    ],
)
def test_what_is_there_against_what_is_known(
    arrived: bool, reason: str, due: Dump, wanted: bool | None
) -> None:
    assert as_known(artifact(arrived=arrived, reason=reason), due) is wanted


def left(asked: bool) -> list[Artifact]:
    """Return what three ranks leave on gloo: nothing by itself, and a dump when asked."""
    own = [artifact(arrived=False, reason="absent", rank=rank) for rank in range(3)]
    return own + [artifact(arrived=asked, rank=rank, how="asked") for rank in range(3)]


def test_a_dump_that_is_expected_absent_must_be_got_in_another_way() -> None:
    for asked, wanted in ((True, Verdict.PASS), (False, Verdict.FAIL)):
        book = Notebook(drill="hang", name="n", stack="x", backend="gloo")
        prove_artifacts(book, left(asked), expected("gloo", "2.15", {}), held=1)
        record = book.record()
        assert len(record.proofs) == 6
        assert record.verdict is wanted
        assert ("debug server" in record.next) is (not asked)


def test_a_backend_without_a_recorder_has_nothing_to_give() -> None:
    for operations, reason, wanted in (
        (0, "no all-reduce is in it", Verdict.PASS),
        (3, "it was written 9 s before the run", Verdict.FAIL),
    ):
        found = [artifact(arrived=False, rank=rank) for rank in range(3)]
        for rank in range(3):
            given = artifact(arrived=True, rank=rank, how="asked")
            found.append(given.model_copy(update={"operations": operations, "reason": reason}))
        book = Notebook(drill="hang", name="n", stack="x", backend="nccl2")
        prove_artifacts(book, found, expected("nccl2", "2.14", {}), held=1)
        assert book.record().verdict is wanted


def test_who_has_written_by_itself_need_not_be_asked() -> None:
    found = [artifact(arrived=rank != 1, rank=rank) for rank in range(3)]
    found += [artifact(arrived=rank == 1, rank=rank, how="asked") for rank in range(3)]
    book = Notebook(drill="hang", name="n", stack="x", backend="nccl")
    prove_artifacts(book, found, expected("nccl", "2.15", {}), held=1)
    assert book.record().verdict is Verdict.PASS
    assert len(book.proofs) == 4


def test_where_a_job_would_write(tmp_path: Path) -> None:
    place = place_of_jobs({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"}, "nccl2")
    assert place.path == f"{tmp_path}/rank_0"
    assert place.overwritten
    run = {"SLURM_JOB_ID": "4711", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/job-4711-rank_"}
    assert not place_of_jobs(run, "nccl2").overwritten


def test_a_folder_that_is_missing_loses_the_dump(tmp_path: Path) -> None:
    variables = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/nowhere/rank_"}
    place = place_of_jobs(variables, "nccl2")
    assert not place.survives
    assert any("missing" in problem for problem in place.problems)
    assert place.mend
