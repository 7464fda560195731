"""Create this checkout's environment when it is missing, and print where it is.

    python3 tools/environment.py          the environment's directory
    python3 tools/environment.py uv       the uv that installs into it
    python3 tools/environment.py clean    remove the environments of this checkout

Needs nothing but the standard library. Progress goes to standard error; only the answer is on
standard output. Environments live under the user's cache directory; one is used when its stamp
says that it was finished for this checkout, this lock and this Python.

This file must still start on a Python that is too old for keepstep, to say so clearly.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.txt"
UV_LOCK = ROOT / "src" / "keepstep" / "stack" / "locks" / "uv.txt"

OLDEST_PYTHON = (3, 11)
STAMP = "keepstep-stamp"  # written into an environment when it is complete

# torch 2.15.0 with its CUDA libraries is 5.3 GB unpacked in uv's cache, and its wheels are
# streamed there. Later environments are hard links into that cache.
SPACE_FIRST_TIME = 7 * 10**9
SPACE_LATER = 10**9


class SetupError(Exception):
    """The environment cannot be set up; says what was seen, what was wanted and what mends it."""

    def __init__(self, *, seen: str, wanted: str, mend: str) -> None:
        super().__init__(f"  seen:   {seen}\n  wanted: {wanted}\n  mend:   {mend}")


# What an environment is called and when it is complete.


def cache_directory(variables: Mapping[str, str]) -> Path:
    """Return keepstep's directory in the user's cache."""
    configured = variables.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is invalid and to be ignored.
    home = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return home / "keepstep"


def python_tag() -> str:
    """Return what an environment owes to the interpreter that it was made with."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return f"{sys.implementation.name}-{version}-{os.uname().machine}"


def checkout_key(checkout: Path) -> str:
    """Return the part of the key that all environments of one checkout share."""
    return hashlib.sha256(os.fsencode(checkout)).hexdigest()[:8]


def environment_key(checkout: Path, lock: bytes, python: str) -> str:
    """Return the environment's name: another checkout, lock or Python is another environment."""
    contents = hashlib.sha256(python.encode() + b"\n" + lock).hexdigest()[:12]
    return f"{checkout_key(checkout)}-{contents}"


def project_digest(checkout: Path) -> str:
    """Return a digest of the files that the installed metadata and scripts are made from."""
    sources = [checkout / "pyproject.toml", checkout / "src" / "keepstep" / "_version.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


def read_stamp(environment: Path) -> str | None:
    """Return the project digest that ``environment`` was completed for, None if it was not."""
    # A stamp without its interpreter (uninstalled, or upgraded in place) is worth nothing.
    if not (environment / "bin" / "python").exists():
        return None
    try:
        return (environment / STAMP).read_text()
    except FileNotFoundError:
        return None


# Conditions that are better checked than met half-way.


def check_python(version: tuple[int, int]) -> None:
    """Raise SetupError when this interpreter is too old."""
    if version < OLDEST_PYTHON:
        raise SetupError(
            seen=f"Python {version[0]}.{version[1]} ({sys.executable})",
            wanted="Python 3.11 or newer",
            mend="make PYTHON=python3.12 (any installed Python from 3.11 on)",
        )


def check_space(directory: Path, *, first_time: bool) -> None:
    """Raise SetupError when the file system of ``directory`` has too little room."""
    wanted = SPACE_FIRST_TIME if first_time else SPACE_LATER
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise SetupError(
            seen=f"{free / 1e9:.1f} GB free in {directory}",
            wanted=f"{wanted / 1e9:.0f} GB",
            mend="free some space, or set XDG_CACHE_HOME to a directory on a larger disk",
        )


@contextlib.contextmanager
def only_one_setup(home: Path) -> Iterator[None]:
    """Hold the lock under which uv and environments are made and removed."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "setup.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Steps.


def say(text: str) -> None:
    """Tell the user about progress."""
    print(f"keepstep: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Run one step of the set-up, its output on standard error; raise SetupError if it fails."""
    finished = subprocess.run(command, stdout=sys.stderr, env=installer_variables(os.environ))
    if finished.returncode != 0:
        shown = " ".join(str(part) for part in command)
        free = shutil.disk_usage(cache_directory(os.environ)).free / 1e9
        raise SetupError(
            seen=f"status {finished.returncode} (its message is above; {free:.1f} GB are free) of\n"
            f"          {shown}",
            wanted="status 0; packages come from the index that pip and uv are configured for",
            mend="check the network; behind a mirror set PIP_INDEX_URL; then run make again",
        )


def installer_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for pip and uv: a mirror that pip is told of holds for uv as well."""
    passed = dict(variables)
    if mirror := variables.get("PIP_INDEX_URL"):
        passed.setdefault("UV_DEFAULT_INDEX", mirror)
    return passed


def uv_version(lock: str) -> str:
    """Return the version of uv that its lock file pins."""
    pinned = re.search(r"^uv==(\S+)", lock, re.MULTILINE)
    assert pinned, "the lock pins uv"
    return pinned.group(1)


def ensure_uv(home: Path) -> Path:
    """Return the pinned uv, installing it when missing."""
    directory = home / f"uv-{uv_version(UV_LOCK.read_text())}"
    if not (directory / "bin" / "uv").exists():
        if importlib.util.find_spec("ensurepip") is None:
            return uv_on_path()
        say("installing uv")
        install_uv(directory)
    return directory / "bin" / "uv"


def install_uv(directory: Path) -> None:
    """Install uv into a virtual environment of its own."""
    # uv is one static program, so its environment can be made aside and moved when complete.
    partial = directory.with_name(f"{directory.name}.partial")
    remove(partial)
    remove(directory)
    run(sys.executable, "-m", "venv", partial)
    python = partial / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
    run(python, "-m", "pip", "install", *options, "-r", UV_LOCK)
    partial.rename(directory)


def uv_on_path() -> Path:
    """Return the user's own uv, for a Python that cannot make a virtual environment with pip."""
    found = shutil.which("uv")
    if found is None:
        raise SetupError(
            seen=f"no ensurepip in {sys.executable}, no uv on PATH",
            wanted="a Python that can create virtual environments",
            mend="apt-get install python3-venv (Debian, Ubuntu), or install uv",
        )
    return Path(found)


def build(environment: Path, uv: Path) -> None:
    """Create ``environment`` with everything that is locked; whatever was there goes first."""
    say(f"creating the environment {environment} (the first time downloads about 3 GB)")
    remove(environment)
    run(uv, "venv", "--quiet", "--python", sys.executable, environment)
    # Compiled now, or every rank would do it again where Python may not write beside its sources:
    # importing torch then takes 7 s instead of 3 s.
    install(environment, uv, "--compile-bytecode", "--require-hashes", "-r", LOCK)


def install(environment: Path, uv: Path, *arguments: str | Path) -> None:
    """Install packages into ``environment``."""
    run(uv, "pip", "install", "--python", environment / "bin" / "python", *arguments)


def install_project(environment: Path, uv: Path) -> None:
    """Install the checkout into ``environment`` (editable) and stamp it as complete."""
    stamp = environment / STAMP
    stamp.unlink(missing_ok=True)
    digest = project_digest(ROOT)
    install(environment, uv, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(digest)


def remove(directory: Path) -> None:
    """Remove a directory that may not exist."""
    if directory.exists():
        shutil.rmtree(directory)


# What the command line offers.


def ensure_environment(home: Path) -> Path:
    """Return this checkout's environment, made or completed when needed."""
    key = environment_key(ROOT, LOCK.read_bytes(), python_tag())
    environment = home / "envs" / key
    if read_stamp(environment) == project_digest(ROOT):
        return environment
    with only_one_setup(home):
        complete(environment, home)
    return environment


def complete(environment: Path, home: Path) -> None:
    """Bring ``environment`` up to date; another set-up may just have done it."""
    stamp = read_stamp(environment)
    if stamp is None:
        check_space(home, first_time=not any(environment.parent.glob(f"*/{STAMP}")))
        build(environment, ensure_uv(home))
    if stamp != project_digest(ROOT):
        install_project(environment, ensure_uv(home))


def locked_uv(home: Path) -> Path:
    """Return the uv that installs and locks."""
    with only_one_setup(home):
        return ensure_uv(home)


def clean(home: Path) -> None:
    """Remove every environment of this checkout, also those of earlier locks."""
    with only_one_setup(home):
        for environment in (home / "envs").glob(f"{checkout_key(ROOT)}-*"):
            say(f"removing {environment}")
            remove(environment)


def main(arguments: list[str]) -> int:
    """Do what ``arguments`` ask for; return the exit code."""
    home = cache_directory(os.environ)
    try:
        check_python(sys.version_info[:2])
        if arguments == ["clean"]:
            clean(home)
        else:
            print(locked_uv(home) if arguments == ["uv"] else ensure_environment(home))
    except SetupError as error:
        say(f"the environment cannot be set up\n{error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next make starts the unfinished part again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
