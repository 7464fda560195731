"""The installer: the uv that is there, or the pinned one, put into keepstep's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from keepstep.stack.errors import InstallError
from keepstep.stack.named import cache_directory

LOCKS = Path(__file__).with_name("locks")
_UV_LOCK = LOCKS / "uv.txt"


def find_uv() -> Path:
    """Return the uv to install with: on PATH, beside this interpreter, else the pinned one.

    Raises:
        InstallError: There is none, and it could not be installed.
    """
    beside = Path(sys.executable).with_name("uv")
    if found := shutil.which("uv"):
        return Path(found)
    return beside if beside.exists() else _pinned()


def run_uv(uv: Path, *arguments: str | Path) -> None:
    """Run uv, its output on standard error.

    Raises:
        InstallError: It failed; its own message is on standard error.
    """
    command = [str(uv), *map(str, arguments)]
    finished = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=installer_variables(os.environ)
    )
    if finished.returncode != 0:
        raise _failed(command, finished.returncode)


def ask_uv(uv: Path, *arguments: str) -> str:
    """Return what uv prints; "" where it fails."""
    finished = subprocess.run(
        [str(uv), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return finished.stdout.strip() if finished.returncode == 0 else ""


def installer_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for pip and uv: a mirror that pip is told of holds for uv as well."""
    passed = dict(variables)
    if mirror := variables.get("PIP_INDEX_URL"):
        passed.setdefault("UV_DEFAULT_INDEX", mirror)
    return passed


def _failed(command: Sequence[str], status: int) -> InstallError:
    directory = cache_directory()
    free = shutil.disk_usage(directory).free / 1e9 if directory.exists() else 0.0
    return InstallError(
        f"the installer ended with status {status} (its message is above; {free:.1f} GB are free): "
        f"{' '.join(command)}; wanted status 0. Check the network, behind a mirror set "
        "PIP_INDEX_URL, then give the same command again"
    )


def _pinned() -> Path:
    """Return the pinned uv of the cache, installed when it is missing."""
    match = re.search(r"^uv==(\S+)", _UV_LOCK.read_text(), re.MULTILINE)
    assert match, "the lock pins uv"
    directory = cache_directory() / f"uv-{match[1]}"
    uv = directory / "bin" / "uv"
    if not uv.exists():
        _install(directory)
    return uv


def _install(directory: Path) -> None:
    # uv is one static program: its environment can be made aside and moved when it is complete.
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f"{directory.name}.partial-{os.getpid()}")
    options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
    python = str(partial / "bin" / "python")
    try:
        for command in (
            [sys.executable, "-m", "venv", str(partial)],
            [python, "-m", "pip", "install", *options, "-r", str(_UV_LOCK)],
        ):
            finished = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
            if finished.returncode != 0:
                raise _failed(command, finished.returncode)
        if not (directory / "bin" / "uv").exists():
            shutil.rmtree(directory, ignore_errors=True)
            partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
