"""How long a rehearsal takes is told from what was measured, or said to be a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.canary.matrix import Machine, cells
from keepstep.canary.verdict import Verdict
from keepstep.drills.record import DrillRecord
from keepstep.rehearsal.estimate import estimate
from keepstep.rehearsal.folder import Folder, Head, digest
from tests.canary.records import rehearsal, small_plan

PLAN = small_plan(pairs=3)
TEXT = "the plan"
DRILLS = "7 drills (2 of them without an answer: no GPU)"
NEW = "data_parallel/2.15/gloo"
HEAD = Head(plan_sha256=digest(TEXT), started="2026-11-30T09:00:00+00:00", keepstep="0.1")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path / "out")
    found.path.mkdir()
    found.write_head(HEAD, TEXT)
    return found


def told(folder: Path) -> list[str]:
    return estimate(PLAN, TEXT, Machine(), folder)


def drill(kind: str, name: str) -> DrillRecord:
    return DrillRecord.model_validate(
        {
            "drill": kind,
            "name": name,
            "stack": "2.14",
            "backend": "gloo",
            "verdict": Verdict.PASS,
            "reason": "all hold",
            "proofs": (),
            "started": "2026-11-30T09:00:00+00:00",
            "seconds": 50.0,
        }
    )


def test_without_measurements_the_limits_are_an_upper_bound(tmp_path: Path) -> None:
    can, runs, drills = told(tmp_path / "new")
    assert can == f"can run here: 15 runs of 5 cells, {DRILLS}"
    assert "15 runs: at most 30 min 0 s, an upper bound: limits.run_s is 120 s" in runs
    assert "7 drills: not known" in drills
    assert not (tmp_path / "new").exists()


def test_measured_runs_and_drills_tell_how_long_the_others_take(folder: Folder) -> None:
    for run in rehearsal(PLAN):
        if run.cell != NEW and run.pair < 2:
            folder.write_run(run.model_copy(update={"seconds": 8.0}))
    folder.write_drill(drill("hang", "hang/2.14/gloo"))
    can, runs, hang, others = told(folder.path)
    assert can.endswith(f"{DRILLS}; made already, in {folder.path}: 8 runs, 1 drill")
    assert runs == "time: 7 runs: about 56 s, by runs like them"
    assert hang == "time: 1 drill: about 50 s, by drills of the same kind"
    assert "5 drills: not known" in others


def test_a_cell_is_told_by_its_own_runs_first(folder: Folder) -> None:
    for run in rehearsal(PLAN):
        if run.pair == 0:
            seconds = 100.0 if run.cell == NEW else 10.0
            folder.write_run(run.model_copy(update={"seconds": seconds}))
    assert "10 runs: about 4 min 40 s" in told(folder.path)[1]


def test_when_all_is_made_only_the_report_is_left(folder: Folder) -> None:
    for run in rehearsal(PLAN):
        folder.write_run(run)
    plan = PLAN.model_copy(update={"drills": ()})
    last = estimate(plan, TEXT, Machine(), folder.path)[-1]
    assert last == "nothing is left to run: only the report is made"


def test_a_damaged_record_is_to_be_made_again_and_stays_where_it_is(folder: Folder) -> None:
    for run in rehearsal(PLAN):
        folder.write_run(run)
    path = folder.run_file(NEW, 1)
    path.write_text("{")
    assert "1 run: about 5 s" in told(folder.path)[1]
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("head", "said"),
    [("{", "it is damaged"), (HEAD.model_copy(update={"plan_sha256": "1" * 64}), "another plan")],
)
def test_a_folder_of_something_else_tells_no_time(
    folder: Folder, head: str | Head, said: str
) -> None:
    text = head if isinstance(head, str) else head.model_dump_json()
    (folder.path / "rehearsal.json").write_text(text)
    for run in rehearsal(PLAN):
        folder.write_run(run)
    _, why, runs = told(folder.path)
    assert said in why
    assert "--out DIR" in why
    assert "15 runs: at most" in runs


def test_a_machine_with_gpus_runs_more() -> None:
    here = estimate(PLAN, TEXT, Machine(gpus=1), Path("nowhere"))[0]
    assert here == "can run here: 15 runs of 5 cells, 13 drills"
    assert len(cells(PLAN)) == 5
