"""The project's promises about itself: its set-up, its lock files, what importing it costs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import environment as setup
from tools import scan_paths as scan

# Set-up: an environment is reused exactly when nothing that it was made from has changed.


def test_the_key_names_the_checkout_the_lock_and_the_python() -> None:
    keys = {
        setup.environment_key(checkout, lock, python)
        for checkout in (Path("/a"), Path("/b"))
        for lock in (b"torch==2.15.0", b"torch==2.15.1")
        for python in ("cpython-3.11.7-x86_64", "cpython-3.12.1-x86_64")
    }
    assert len(keys) == 8


def test_the_key_is_stable_and_starts_with_the_checkout() -> None:
    first, second = (setup.environment_key(Path("/a"), b"lock", "python") for _ in range(2))
    assert first == second
    assert first.startswith(f"{setup.checkout_key(Path('/a'))}-")


@pytest.mark.parametrize("configured", ["", "relative/cache"])
def test_the_cache_is_below_home_unless_an_absolute_directory_is_configured(
    configured: str, tmp_path: Path
) -> None:
    assert setup.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "keepstep"
    expected = Path.home() / ".cache" / "keepstep"
    assert setup.cache_directory({"XDG_CACHE_HOME": configured}) == expected


@pytest.fixture
def complete_environment(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / setup.STAMP).write_text("digest")
    return tmp_path


def test_a_complete_environment_has_a_stamp(complete_environment: Path) -> None:
    assert setup.read_stamp(complete_environment) == "digest"


def test_an_environment_without_a_stamp_is_half_built(complete_environment: Path) -> None:
    (complete_environment / setup.STAMP).unlink()
    assert setup.read_stamp(complete_environment) is None


def test_a_stamp_is_worth_nothing_when_the_interpreter_is_gone(complete_environment: Path) -> None:
    python = complete_environment / "bin" / "python"
    python.unlink()
    python.symlink_to(complete_environment / "uninstalled")
    assert setup.read_stamp(complete_environment) is None


def test_a_changed_project_is_installed_again(tmp_path: Path) -> None:
    (tmp_path / "src" / "keepstep").mkdir(parents=True)
    version = tmp_path / "src" / "keepstep" / "_version.py"
    project = tmp_path / "pyproject.toml"
    digests = set()
    for path, content in [(version, "1"), (project, "a"), (version, "2"), (project, "b")]:
        path.write_text(content)
        project.touch()
        digests.add(setup.project_digest(tmp_path))
    assert len(digests) == 4


def test_an_old_python_is_refused_with_the_command_that_mends_it() -> None:
    setup.check_python((3, 11))
    with pytest.raises(setup.SetupError, match=r"Python 3\.10 .*(?s:.*)make PYTHON=python3\.12"):
        setup.check_python((3, 10))


def test_too_little_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    setup.check_space(tmp_path, first_time=False)
    with pytest.raises(setup.SetupError, match=r"3\.0 GB free(?s:.*)7 GB"):
        setup.check_space(tmp_path, first_time=True)


def test_a_mirror_given_to_pip_holds_for_uv_unless_uv_has_its_own() -> None:
    mirror = {"PIP_INDEX_URL": "https://mirror.example"}
    assert setup.installer_variables(mirror)["UV_DEFAULT_INDEX"] == "https://mirror.example"
    own = {**mirror, "UV_DEFAULT_INDEX": "https://own.example"}
    assert setup.installer_variables(own) == own
    assert "UV_DEFAULT_INDEX" not in setup.installer_variables({})


# Lock files: exact, checked by hash, and free of any address.


SHIPPED = "src/keepstep/stack/locks"


@pytest.fixture(
    params=[
        "requirements/dev",
        "requirements/runtime",
        f"{SHIPPED}/torch-2.14.1",
        f"{SHIPPED}/torch-2.15.0",
        f"{SHIPPED}/uv",
    ]
)
def lock(request: pytest.FixtureRequest, checkout: Path) -> str:
    return (checkout / f"{request.param}.txt").read_text()


def test_a_lock_names_no_index(lock: str) -> None:
    assert "://" not in lock
    assert not re.search(r"^\s*(?:--(?:extra-)?index-url|-i|--find-links|-f)\b", lock, re.MULTILINE)


def test_every_locked_package_has_an_exact_version_and_hashes(lock: str) -> None:
    entries = re.split(r"^(?=\w)", lock, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


# The scan of machine paths. The samples are put together here so that it does not find them.

MACHINE_PATHS = ["/".join(["", *parts]) for parts in (["work", "x"], ["root", "x"], ["home", "me"])]
INDEX = "https://" + "pypi.org" + "/simple/torch"


@pytest.mark.parametrize("text", [*MACHINE_PATHS, INDEX, f'open("{MACHINE_PATHS[0]}")'])
def test_the_scan_finds_machine_paths_and_indexes(text: str) -> None:
    (finding,) = scan.findings_in(Path("a.py"), f"first line\nx = {text}\n".encode())
    assert str(finding).startswith("a.py:2: ")


@pytest.mark.parametrize(
    "text", ["docs/work/plan.md", "~/root/x", "$HOME/work/x", "https://example.com/home/me"]
)
def test_the_scan_leaves_relative_paths_and_addresses_alone(text: str) -> None:
    assert not list(scan.findings_in(Path("a.md"), text.encode()))


def test_the_scan_skips_binary_files() -> None:
    assert not list(scan.findings_in(Path("a.bin"), b"\0" + MACHINE_PATHS[0].encode()))


# What a training process pays for keepstep.

_IMPORTED_BEYOND_TORCH = """
import json, sys
import torch
before = {name.partition(".")[0] for name in sys.modules}
import keepstep
after = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted(after - before - set(sys.stdlib_module_names) - {"keepstep"})))
"""


def test_importing_keepstep_brings_in_nothing_beyond_torch() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _IMPORTED_BEYOND_TORCH], capture_output=True, text=True, check=True
    )
    assert json.loads(finished.stdout) == []
