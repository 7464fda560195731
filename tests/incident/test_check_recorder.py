"""`keepstep check-recorder`: what it prints and how it exits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.recorder import disk

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _only_these_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("TORCH", "NCCL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/dumps/rank_")
    (tmp_path / "dumps").mkdir()
    monkeypatch.setattr(disk, "mount_of", lambda *_: ("/", "ext4"))


def run(capture: Capture, *arguments: str) -> tuple[int, str, str]:
    code = execute(["check-recorder", *arguments])
    printed = capture.readouterr()
    return code, printed.out, printed.err


def found(capture: Capture, *arguments: str) -> tuple[int, bool, dict[str, str]]:
    """Return exit code, whether a dump survives, and the severity of each code."""
    code, out, err = run(capture, *arguments, "--json")
    assert err == ""
    body: dict[str, Any] = json.loads(out)
    assert all(each["mend"] for each in body["problems"])
    return code, body["survives"], {each["code"]: each["severity"] for each in body["problems"]}


def test_a_dump_that_would_survive(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = run(capsys, "--asked", "--ranks", "8", "--grace", "60")
    assert (code, err) == (ExitCode.PASS, "")
    assert out == (
        f"a dump of nccl2, of rank 0 at {tmp_path}/dumps/rank_0, would survive the job\n"
    )
    assert found(capsys, "--asked") == (ExitCode.PASS, True, {})


def test_a_warning_is_no_failure(capsys: Capture) -> None:
    answer = found(capsys, "--grace", "5")
    assert answer == (ExitCode.PASS, True, {"silent-ranks": "warning", "short-grace": "warning"})
    _, out, _ = run(capsys, "--grace", "5")
    assert "  warning (short-grace): 5 s pass between" in out
    assert "    mend: let the launcher wait 45 s before it kills\n" in out


def test_gloo_never_writes_unless_it_is_asked(capsys: Capture) -> None:
    assert found(capsys, "--backend", "gloo") == (ExitCode.FAIL, False, {"silent-ranks": "error"})
    assert found(capsys, "--backend", "gloo", "--asked")[0] == ExitCode.PASS


def test_a_container_takes_its_dumps_with_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "mount_of", lambda *_: ("/", "overlay"))
    code, out, _ = run(capsys, "--asked")
    assert code == ExitCode.FAIL
    assert "would be lost\n  error (lost-with-container): " in out
    assert "    mend: set TORCH_FR_DUMP_TEMP_FILE to a prefix on storage that outlives" in out


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("TORCH_FR_BUFFER_SIZE", "0", "recorder-off"),
        ("TORCH_FR_BUFFER_SIZE", "many", "invalid-variable"),
        ("TORCH_FR_DUMP_TEMP_FILE", "/nonexistent/folder/rank_", "no-directory"),
        ("TORCH_FR_BUFFER_SIZE", str(1 << 50), "no-space"),
    ],
)
def test_variables_that_lose_a_dump(
    name: str, value: str, code: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    exit_code, survives, codes = found(capsys, "--asked")
    assert (exit_code, survives, codes.get(code)) == (ExitCode.FAIL, False, "error")


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("--backend", "mpi"), "--backend mpi: known are nccl2, nccl-lazy, nccl-legacy, gloo"),
        (("--ranks", "0"), "--ranks 0: wanted the number of ranks of this host"),
        (("--grace", "-1"), "--grace -1: wanted a number of seconds"),
        (("--grace", "nan"), "--grace nan: wanted a number of seconds"),
    ],
)
def test_usage(arguments: tuple[str, ...], seen: str, capsys: Capture) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"keepstep check-recorder: {seen}")


def test_help_lists_it(capsys: Capture) -> None:
    execute(["--help"])
    assert "\n  check-recorder " in capsys.readouterr().out
