from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute

Run = Callable[..., tuple[int, str, str]]

# Stands for uv. It makes a folder whose interpreter is this one, with a package path of its own,
# and "installs" a torch of the version that the requirements name. It notes what it is asked for.
FAKE_UV = """
    import os, pathlib, re, sys, time
    folder, arguments = pathlib.Path(__file__).parent, sys.argv[1:]
    with open(folder / "calls", "a") as calls:
        calls.write(" ".join(arguments) + "\\n")
    if arguments[:2] == ["cache", "dir"]:
        print(folder)
    elif arguments[0] == "venv":
        place = pathlib.Path(arguments[-1])
        (place / "bin").mkdir(parents=True)
        (place / "site" / "torch").mkdir(parents=True)
        python = place / "bin" / "python"
        python.write_text(
            f'#!/bin/sh\\nPYTHONPATH="$PYTHONPATH:{place}/site" exec {sys.executable} -S "$@"\\n'
        )
        python.chmod(0o755)
    elif arguments[:2] == ["pip", "compile"]:
        asked = next(each for each in arguments if each.endswith(".in"))
        lock = arguments[arguments.index("-o") + 1]
        text = pathlib.Path(asked).read_text().replace("\\n", " --hash=sha256:00\\n")
        pathlib.Path(lock).write_text(text)
    else:
        if (folder / "fails").exists():
            sys.exit("the index does not answer")
        if (folder / "dies").exists():
            (folder / "dies").unlink()
            os.kill(os.getppid(), 9)
            sys.exit(1)
        place = pathlib.Path(arguments[arguments.index("--python") + 1]).parent.parent
        lock = pathlib.Path(arguments[arguments.index("-r") + 1]).read_text()
        version = re.search(r"^torch==(\\S+)", lock, re.M)[1]
        (place / "site" / "torch" / "__init__.py").write_text(
            "from types import SimpleNamespace as S\\n"
            f"__version__ = '{version}+fake'\\n"
            "version = S(git_version='0'*40, cuda=None, debug=False)\\n"
        )
        for name in ("torch", "numpy"):
            info = place / "site" / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\\nVersion: {version}\\n")
"""


class FakeUv:
    """The fake, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "uv"
        program.write_text(f"#!{sys.executable}\n{textwrap.dedent(FAKE_UV)}")
        program.chmod(0o755)

    def calls(self, *words: str) -> list[str]:
        """Return the command lines that begin with these words."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(" ".join(words))]

    def will(self, what: str) -> None:
        """Let the next installation fail, or die with the one that asked for it."""
        (self.folder / what).touch()

    def works_again(self) -> None:
        (self.folder / "fails").unlink()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; what is there has room for a first PyTorch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    free(monkeypatch, 10**12)
    return tmp_path / "cache" / "keepstep"


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the disk have this many bytes of room."""
    usage = (2 * count, count, count)
    named = __import__("shutil")._ntuple_diskusage(*usage)
    monkeypatch.setattr("keepstep.stack.disk.shutil.disk_usage", lambda _: named)


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    folder = tmp_path / "uv"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeUv(folder)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Give a ``keepstep stack`` command; returns exit code, standard output and error."""

    def give(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = execute(["stack", *arguments])
        said = capfd.readouterr()
        return int(code), said.out, said.err

    return give


@pytest.fixture
def asked(run: Run) -> Callable[..., Any]:
    """Give a command with --json; returns what it says."""

    def give(*arguments: str) -> Any:
        _, out, err = run(*arguments, "--json")
        assert out, err
        return json.loads(out)

    return give
