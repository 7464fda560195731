"""The `keepstep` command: what it prints and how it exits, whatever the commands do."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from types import ModuleType
from typing import Annotated

import pytest
import typer

from keepstep import entry
from keepstep.cli.main import execute, main
from keepstep.exit_codes import ExitCode


def run(
    script: str,
    args: Annotated[list[str] | None, typer.Argument()] = None,
    spares: Annotated[int, typer.Option(min=0)] = 0,
) -> ExitCode | None:
    """Stand in for the real command; the script's name says how to end."""
    print(f"{script} {args or []} {spares}")
    if script == "interrupted.py":
        raise KeyboardInterrupt
    if script == "refused.py":
        raise typer.BadParameter("seen one, wanted two")
    return ExitCode.INCONCLUSIVE if script == "inconclusive.py" else None


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("keepstep.cli.run")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keepstep.cli.run", module)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("good.py", ExitCode.PASS),
        ("refused.py", ExitCode.USAGE),
        ("inconclusive.py", ExitCode.INCONCLUSIVE),
        ("interrupted.py", ExitCode.INTERRUPTED),
    ],
)
def test_the_end_of_a_command_is_the_exit_code(script: str, code: ExitCode) -> None:
    assert execute(["run", script]) == code


def test_what_follows_the_script_belongs_to_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "--spares", "1", "job.py", "--spares", "7", "-x"]) == ExitCode.PASS
    assert capsys.readouterr().out == "job.py ['--spares', '7', '-x'] 1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fast"], "keepstep: No such option: --fast\nSee: keepstep --help\n"),
        (["walk"], "keepstep: No such command 'walk'.\nSee: keepstep --help\n"),
        (["run"], "keepstep run: Missing argument 'script'.\nSee: keepstep run --help\n"),
    ],
)
def test_a_usage_error_is_one_plain_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", message)


def test_without_a_command_help_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"^  run +Stand in for the real command", printed.err, re.MULTILINE)


def test_the_version_imports_no_command() -> None:
    program = (
        "import sys; from keepstep.cli.main import execute; execute(['--version'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('keepstep.cli.')))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    version, imported = finished.stdout.splitlines()
    assert version.startswith("keepstep ")
    assert imported == "['keepstep.cli.machine_errors', 'keepstep.cli.main']"


def test_a_mistake_of_our_own_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise AssertionError("never")

    monkeypatch.setattr("keepstep.cli.main.execute", broken)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.INFRASTRUCTURE
    assert "says nothing about your job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            "/x/y: No space left on device; free",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "standard output or a file: No space"),
        (OSError(errno.EROFS, "Read-only file system", "/x"), "/x: Read-only file system; it is"),
    ],
)
def test_an_error_of_the_machine_is_one_message_with_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, wanted: str
) -> None:
    def full(_: object) -> int:
        raise error

    monkeypatch.setattr("keepstep.cli.main.execute", full)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.INFRASTRUCTURE
    said = capsys.readouterr().err
    assert wanted in said
    assert "Traceback" not in said


def test_an_output_that_takes_nothing_is_told() -> None:
    program = "import sys; sys.argv[1:] = ['--version']; from keepstep.entry import main; main()"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == ExitCode.INFRASTRUCTURE
    assert "standard output or a file: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_interrupt_while_the_command_loads_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "keepstep.cli.main")
    monkeypatch.setitem(sys.modules, "typer", Interrupting("typer"))
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == ExitCode.INTERRUPTED


class Interrupting(ModuleType):
    """A module in whose import Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt
