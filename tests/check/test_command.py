"""``keepstep check`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepstep.cli.main import execute
from tests.check.job import END, IMPORTS, READY, write_job

INIT = 'dist.init_process_group("nccl")\n'
FINE = ("--gpus", "sm_90", "--driver", "580.95.05", "--fabric-manager", "580.95.05")


@pytest.fixture(autouse=True)
def _no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed here is looked at in test_machine."""
    monkeypatch.setattr("keepstep.check.machine.interpreter", lambda question: ())


def _check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = execute(["check", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_job_that_is_ready_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_job(tmp_path, IMPORTS, READY, END)
    code, out, err = _check(capsys, script, *FINE)
    assert (code, err) == (0, "")
    assert "nothing found" in out.splitlines()[0]
    assert out.splitlines()[1] == f"backend: nccl, as it is written ({script}:9)"
    assert "Not looked at (1)" in out  # installed packages


def test_what_breaks_comes_first_and_its_place_can_be_clicked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path, IMPORTS, INIT, "dist.all_reduce_multigpu(x)")
    code, out, _ = _check(capsys, "train.py", *FINE)
    assert code == 1
    assert out.index("Breaks (1)") < out.index("Risks (")
    assert "\n  train.py:7:1: KS306 " in out
    assert "    mend: " in out


def test_a_machine_that_cannot_be_seen_is_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from keepstep.check.machine_facts import read_machine

    if read_machine().driver:
        pytest.skip("this machine has a driver")
    script = write_job(tmp_path, IMPORTS, READY, END)
    code, out, _ = _check(capsys, script)
    assert code == 3
    assert "matters: driver and GPUs" in out
    assert _check(capsys, script, "--gpus", "none")[0] == 0


def test_a_job_without_cuda_needs_no_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write_job(tmp_path, IMPORTS, 'dist.init_process_group("gloo")', END)
    assert _check(capsys, script)[0] == 0


def test_the_machine_form_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_job(tmp_path, IMPORTS, INIT)
    code, out, err = _check(capsys, script, "--json", *FINE)
    body = json.loads(out)
    assert (code, err, body["exit_code"]) == (0, "", 0)
    assert (body["from"], body["to"]) == ("2.14", "2.15")
    assert body["backends"] == [f"nccl, as it is written ({script}:6)"]
    assert {"code", "severity", "file", "line", "column", "text", "why", "mend"} == set(
        body["findings"][0]
    )
    assert body["looked"] == [str(script)]


def test_many_places_of_one_rule_are_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write_job(tmp_path, IMPORTS, INIT, "dist.barrier()\n" * 9)
    _, out, _ = _check(capsys, script, *FINE)
    assert "and 5 more: --json lists all" in out


def test_many_groups_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_job(tmp_path, IMPORTS, INIT * 9)
    _, out, _ = _check(capsys, script, *FINE)
    assert out.count("\nbackend: ") == 4
    assert "and 5 more backends: --json lists all" in out


def test_another_machine_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_job(tmp_path, IMPORTS, READY, END)
    there = ("--gpus", "sm_70,sm_90", "--driver", "535.104.05", "--fabric-manager", "535.104.06")
    code, out, _ = _check(capsys, script, *there)
    assert code == 1
    assert all(f"  {name} " in out for name in ("KS701", "KS702", "KS703"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "1.13"), "wanted a version from 2.0"),
        (("--to", "2.99"), "wanted a version from 2.0"),
        (("--launch", "torchrun 'x"), "wanted one command line"),
        (("--gpus", "h100"), "wanted architectures such as sm_90"),
        (("--groups", "dp=8"), "wanted the dimensions"),
        (("--stack", "none-such"), "none-such"),
        (("--driver", "new"), "--driver new: wanted a version"),
        (("--include", "/none-such"), "--include /none-such: wanted a folder"),
        (("--stack", "../x"), "cannot name a stack"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_usage(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, err = _check(capsys, write_job(tmp_path, IMPORTS), *arguments)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.py", None, "no such file"),
        ("a.ipynb", b"{}", "nbconvert"),
        ("a.py", b"\0\1", "binary"),
        ("a.py", b"# \xff", "not text in UTF-8"),
    ],
)
def test_what_is_no_script_is_a_usage_error(
    name: str, content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    code, out, err = _check(capsys, path)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    "text", ["x = " + "-" * 50_000 + "1", "if a: pass\n" + "elif b: pass\n" * 9_000]
)
def test_source_that_is_too_deep_for_python_is_no_traceback(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _check(capsys, write_job(tmp_path, text))
    assert code == 1
    assert "KS001 too deeply nested" in out


def test_a_folder_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(capsys, tmp_path)[0] == 2


def test_the_real_example_has_nothing_that_breaks(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _check(capsys, checkout / "jobs" / "bytelm.py", *FINE)
    assert code == 0
    assert "Breaks" not in out
