"""The default plan, shortened: a whole plan that runs less and proves it by the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.canary.cell import Role
from keepstep.canary.matrix import cells
from keepstep.canary.plan import default_plan, default_text, read_plan
from keepstep.canary.plan_text import PlanError
from keepstep.canary.short_plan import short_text
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode

JOBS = ("data_parallel", "sharded", "tensor", "pipeline")


def test_what_is_not_shortened_is_the_default_plan() -> None:
    assert short_text() == default_text()


@pytest.mark.parametrize("job", JOBS)
def test_the_cells_of_one_job_are_left(tmp_path: Path, job: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(short_text(job, 3))
    plan, whole = read_plan(path), default_plan()
    found = cells(plan)
    assert {cell.job for cell in found} == {job}
    of_job = {cell.id for cell in cells(whole) if cell.job == job}
    planted = {cell.id for cell in found if cell.role in (Role.SLOWER, Role.FASTER)}
    assert {cell.id for cell in found} - planted == of_job - planted
    assert len(planted) == 4, "the judge is judged, whichever job it is"
    assert plan.pairs == 3
    same = ("drills", "margins", "limits", "parity", "stacks", "backends", "saving_job", "seed")
    assert all(getattr(plan, name) == getattr(whole, name) for name in same)
    assert set(plan.topologies) == {cell.topology for cell in found}


def test_fewer_pairs_of_all_jobs() -> None:
    assert short_text(pairs=3) == default_text().replace("pairs = 5", "pairs = 3")


@pytest.mark.parametrize(
    ("job", "pairs", "said"),
    [
        ("tensr", None, "--job tensr: wanted one of data_parallel, .*Did you mean 'tensor'"),
        ("many_devices", None, "--job many_devices: wanted one of"),
        ("", 0, "pairs: saw 0; wanted greater than or equal to 3"),
        ("tensor", 61, "pairs: saw 61; wanted less than or equal to 60"),
        ("", -1, "pairs: saw -1; wanted greater than or equal to 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(job: str, pairs: int | None, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        short_text(job, pairs)


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = ["--job", "tensor", "--pairs", "3"]
    assert execute(["rehearse", "--print-plan", *shorter]) == ExitCode.PASS
    assert capsys.readouterr().out == short_text("tensor", 3)
    plan = tmp_path / "plan.toml"
    plan.write_text(default_text())
    for wrong in (shorter, ["--list", *shorter], ["--print-plan", str(plan), *shorter]):
        assert execute(["rehearse", *wrong]) == ExitCode.USAGE
        assert "wanted keepstep rehearse --print-plan --job NAME" in capsys.readouterr().err
    for wrong in (["--pairs", "0"], ["--pairs", "x"], ["--job", "none"]):
        assert execute(["rehearse", "--print-plan", *wrong]) == ExitCode.USAGE
