"""`keepstep rehearse` as a user sees it: ends, resumes, refuses, tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepstep.canary.matrix import Machine
from keepstep.canary.plan import default_text
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.receipt.keys import trusted_keys
from keepstep.receipt.sealed import open_receipt
from keepstep.stack.named import STACK, stack_folder
from tests.rehearsal import fake_stack

RUNS = 15  # five cells, three rounds


@pytest.fixture(autouse=True)
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The two stacks of the default plan, and a home of their own for keys and caches."""
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return {name: fake_stack.make(name, tmp_path / f"py-{name}") for name in ("2.14.1", "2.15.0")}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The default plan, shortened: one job on a CPU, three rounds, no drills."""
    text = default_text()
    for old, new in (
        ("pairs = 5", "pairs = 3"),
        ('jobs = ["data_parallel", "sharded", "tensor", "pipeline"]', 'jobs = ["data_parallel"]'),
        ('drills = ["hang", "rollback", "restore", "replace"]', "drills = []"),
    ):
        assert old in text, old
        text = text.replace(old, new, 1)
    head, _, rest = text.partition("[[beside]]")
    tail = rest[rest.index("[margins.cpu]") :]
    path = tmp_path / "plan.toml"
    path.write_text(_only_on_cpu(head) + tail)
    return path


def _only_on_cpu(text: str) -> str:
    first, compare, rest = text.partition("[[compare]]")
    return first + compare + rest.split("[[compare]]")[0]


def rehearse(plan: Path, out: Path) -> int:
    return execute(["rehearse", str(plan), "--out", str(out)])


def runs(out: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*.json")}


def test_it_ends_in_a_report_and_signed_receipts(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert rehearse(plan, out) == ExitCode.INCONCLUSIVE, capsys.readouterr().err
    found = json.loads((out / "report.json").read_text())
    told = capsys.readouterr()
    assert len(runs(out)) == RUNS
    assert f"run {RUNS} of {RUNS}" in told.err
    assert "report.html" in told.out
    assert "<html" in (out / "report.html").read_text()
    assert "GPU" in json.dumps(found), "what no CPU can prove is said"
    receipts = [open_receipt(path.read_bytes(), trusted_keys()) for path in out.glob("receipts/*")]
    assert sorted(each.kind for each in receipts) == ["cell"] * 5 + ["rehearsal"]
    assert "first 10 steps of 3 runs of the old stack and 3 of the new one" in found["numbers"]
    assert execute(["receipt", "verify", str(out)]) == ExitCode.PASS
    assert "report.html is the page of the signed record" in capsys.readouterr().out


def test_the_same_command_runs_only_what_is_missing(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rehearse(plan, out)
    before = runs(out)
    gone = sorted(before)[4]
    gone.unlink()
    rehearse(plan, out)
    after = runs(out)
    changed = {path for path in after if after[path] != before[path]}
    assert changed == {gone}
    assert "taken up again" in (out / "report.json").read_text()


def test_ctrl_c_keeps_what_was_run(
    plan: Path, stacks: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (stacks["2.15.0"] / "interrupt").touch()
    assert rehearse(plan, out) == ExitCode.INTERRUPTED
    assert "the same command goes on" in capsys.readouterr().err
    kept = runs(out)
    assert 0 < len(kept) < RUNS
    assert rehearse(plan, out) == ExitCode.INCONCLUSIVE
    assert len(runs(out)) == RUNS
    assert all(runs(out)[path] == time for path, time in kept.items())


def test_a_crash_of_the_new_stack_is_a_fail(
    plan: Path, stacks: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stacks["2.15.0"] / "crash").touch()
    assert rehearse(plan, tmp_path / "out") == ExitCode.FAIL
    assert "Do not move" in capsys.readouterr().out


def test_a_folder_of_another_plan_is_refused(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "x").mkdir(parents=True)
    assert rehearse(plan, out) == ExitCode.USAGE
    assert "--out" in capsys.readouterr().err
    assert not (out / "runs").exists()


def test_a_file_is_no_folder_for_results(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearse(plan, plan) == ExitCode.USAGE
    assert "wanted a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pairs = 3", "piars = 3", "piars"),
        ('"2.15" = "2.15.0"', '"2.15" = "latest"', "latest"),
        ("@jobs/data_parallel.py", "@jobs/data_paralel.py", "data_paralel"),
        ('script = "@jobs/data_parallel.py"', 'script = "missing.py"', "missing.py"),
        ('"{backend}"', '"{bakend}"', "Did you mean 'backend'?"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_before_anything_runs(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert old in plan.read_text()
    plan.write_text(plan.read_text().replace(old, new))
    assert rehearse(plan, tmp_path / "out") == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()
    assert not (tmp_path / "out" / "plan.toml").exists(), "the mended plan may have the folder"


def test_a_plan_in_another_encoding_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_bytes(b"owner = '\xff'")
    assert rehearse(plan, tmp_path / "out") == ExitCode.USAGE
    assert "plan.toml: not UTF-8" in capsys.readouterr().err


def test_the_list_of_cells_runs_nothing(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["rehearse", str(plan), "--list", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "data_parallel/2.15/gloo: 3 runs" in told
    assert told.splitlines()[-2] == "can run here: 15 runs of 5 cells, 0 drills"
    assert "an upper bound" in told.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_the_list_says_which_drills_end_without_an_answer_where_no_gpu_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(gpus: int) -> list[str]:
        machine = Machine(gpus=gpus)
        monkeypatch.setattr("keepstep.cli.rehearse.allocation", lambda _: machine)
        assert execute(["rehearse", "--list", "--out", str(tmp_path / "out")]) == 0
        return capsys.readouterr().out.splitlines()

    short = "runs, and ends without an answer: it needs 1 GPU for one"
    told = listed(0)
    assert [line for line in told if short in line] == [
        f"drill rollback/{lever}: {short}" for lever in ("variable", "spelling")
    ]
    assert any(line.startswith("drill rollback/stack: the way back works") for line in told)
    assert not any("without an answer" in line for line in listed(1))


def test_when_its_minutes_are_over_it_reports_what_there_is(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    minutes = ["--minutes", "0"]
    assert execute(["rehearse", str(plan), "--out", str(out), *minutes]) == ExitCode.INCONCLUSIVE
    assert not runs(out)
    told = json.loads((out / "report.json").read_text())
    assert {each["state"] for each in told["rehearsal"]["cells"]} == {"not run"}
    assert all("--minutes" in each["why"] for each in told["rehearsal"]["not_run"])
    assert f"{RUNS} runs were not made" in capsys.readouterr().out
    rehearse(plan, out)
    assert len(runs(out)) == RUNS
    gone = sorted(runs(out))[4]
    gone.unlink()
    execute(["rehearse", str(plan), "--out", str(out), *minutes])
    assert not gone.exists()
    assert "1 run was not made" in (out / "report.json").read_text()


def test_a_report_that_is_asked_for_again_changes_no_receipt(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rehearse(plan, out)
    first = {path.name: path.read_bytes() for path in out.glob("receipts/*")}
    rehearse(plan, out)
    assert {path.name: path.read_bytes() for path in out.glob("receipts/*")} == first
    assert "taken up again" not in (out / "report.json").read_text()


def test_a_damaged_stack_is_not_made_anew(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stack_folder("2.15.0") / STACK).write_text("{")
    assert rehearse(plan, tmp_path / "out") == ExitCode.USAGE
    assert "keepstep stack remove 2.15.0" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["", "{", '{"format": 1}', "\x00" * 200])
def test_a_damaged_head_is_not_replaced_silently(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    out = tmp_path / "out"
    execute(["rehearse", str(plan), "--out", str(out), "--minutes", "0"])
    head = out / "rehearsal.json"
    head.write_text(left)
    other = tmp_path / "other.toml"
    other.write_text(plan.read_text() + "# another one\n")
    assert rehearse(other, out) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "rehearsal.json: it is damaged" in told
    assert "--out DIR" in told
    assert head.read_text() == left, "nothing was changed"
    (out / "plan.toml").unlink()
    assert rehearse(plan, out) == ExitCode.USAGE
    assert head.read_text() == left


def test_a_damaged_head_beside_the_same_plan_is_taken_up_with_a_note(
    plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rehearse(plan, out)
    before = runs(out)
    (out / "rehearsal.json").write_text("{")
    for _ in range(2):  # and it stays noted
        assert rehearse(plan, out) == ExitCode.INCONCLUSIVE
        assert runs(out) == before
        (note,) = json.loads((out / "report.json").read_text())["rehearsal"]["notes"]
        assert "rehearsal.json was damaged" in note
    assert (out / "rehearsal.json.damaged").read_text() == "{"
