"""`keepstep rehearse` where the job, the shell or an accident is not what it expects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.canary.launch import run_cell
from keepstep.canary.matrix import cells
from keepstep.canary.plan import Plan, default_plan
from keepstep.canary.processes import Processes
from keepstep.canary.record import Outcome, RunRecord
from keepstep.canary.schedule import Turn
from keepstep.cli.main import execute
from keepstep.cli.rehearse import _say
from keepstep.exit_codes import ExitCode
from keepstep.rehearsal.folder import only_one
from keepstep.stack.named import find_stack
from tests.rehearsal import fake_stack


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack that trains nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake_stack.make("fake", tmp_path / "py")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A job that is somewhere else than the one who rehearses it."""
    path = tmp_path / "job" / "train.py"
    path.parent.mkdir()
    path.touch()
    return path


def run(script: Path, folder: Path, plan: Plan | None = None) -> RunRecord:
    plan = plan or default_plan()
    return run_cell(
        plan,
        cells(plan)[0],
        script=script,
        stack=find_stack("fake"),
        folder=folder,
        turn=Turn(cell="x", pair=0, order=0),
    )


def at_the_end(stack: Path, code: str) -> None:
    with open(stack / "python", "a") as program:
        program.write(code)


def test_a_relative_folder_is_the_one_of_the_operator(
    stack: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with only_one(Path("out")) as folder:
        record = run(script, folder.run_folder("cell", 0))
    assert (record.outcome, len(record.ranks)) == (Outcome.COMPLETE, 2), record.output_tail
    assert (tmp_path / "out/runs/cell/0/rank-0.json").is_file()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("path = folder + '/rank-%d.json' % me; os.unlink(path); os.mkfifo(path)", "is no file"),
        ("path = folder + '/rank-%d.json' % me; os.unlink(path); os.mkdir(path)", "is no file"),
        ("import shutil; shutil.rmtree(folder, ignore_errors=True)", "left no record"),
    ],
)
@pytest.mark.timeout(60)
def test_a_job_that_ruins_its_record_has_none(
    stack: Path, script: Path, tmp_path: Path, code: str, said: str
) -> None:
    at_the_end(stack, code)
    assert said in run(script, tmp_path / "run").reason


def test_only_the_end_of_a_large_output_is_read(stack: Path, script: Path, tmp_path: Path) -> None:
    at_the_end(stack, "os.truncate(1, 1 << 40); os.lseek(1, 0, 2); os.write(1, b'the end')")
    assert run(script, tmp_path / "run").output_tail.endswith("the end")


def test_a_limit_that_no_clock_holds_is_a_long_one() -> None:
    with Processes() as processes:
        processes.start([sys.executable, "-c", ""], {}, sys.stderr.buffer, Path("/"))
        assert processes.wait(1e300, 1.0)


def test_what_a_killed_rehearsal_left_running_ends_before_the_run_is_made_again(
    stack: Path, script: Path, tmp_path: Path
) -> None:
    first = run(script, tmp_path / "run")
    assert not (tmp_path / "run/mark").exists(), "nothing of it is running"
    (tmp_path / "run/mark").write_text("a-mark-of-this-test")
    left = subprocess.Popen(
        ["sleep", "600"], env={"KEEPSTEP_RUN": "a-mark-of-this-test", "PATH": os.defpath}
    )
    try:
        assert run(script, tmp_path / "run").outcome == first.outcome
        assert left.wait(10) == -signal.SIGKILL
    finally:
        left.kill()


def test_words_of_a_job_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _say("rank 0: \x1b[2Jboom\nnext")
    assert capsys.readouterr().err == "keepstep: rank 0: \\x1b[2Jboom\nnext\n"


def test_a_plan_that_is_not_there_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        assert execute(["rehearse", str(path), "--out", str(tmp_path / "out")]) == ExitCode.USAGE
        assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_cell_in_its_place_was_never_made(
    stack: Path, script: Path, tmp_path: Path
) -> None:
    record = run(script, tmp_path / "run")
    with only_one(tmp_path / "out") as folder:
        folder.write_run(record)
        assert folder.read_run(record.cell, 0) == record
        path = folder.run_folder(record.cell, 0).with_suffix(".json")
        path.rename(path.with_name("1.json"))
        assert folder.read_run(record.cell, 1) is None
        assert path.with_name("1.json.damaged").exists()


def test_a_key_that_others_can_read_is_no_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert execute(["receipt", "key"]) == ExitCode.PASS
    (tmp_path / "config/keepstep/receipt.key").chmod(0o644)
    assert execute(["rehearse", "--out", str(tmp_path / "out")]) == ExitCode.USAGE
    assert "chmod 600" in capsys.readouterr().err
