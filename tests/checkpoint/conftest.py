from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keepstep.checkpoint.inspection import contents_of
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.testload import environment_of
from tests.checkpoint.old_torch import ensure_old_python

DATA = Path(__file__).parent.parent / "data" / "checkpoint"

Checkpoint = Callable[..., Path]


class Saved(NamedTuple):
    """What saves.py has done: checkpoints in a folder, and facts."""

    folder: Path
    facts: dict[str, Any]


def write_checkpoint(folder: Path, metadata: bytes) -> None:
    """Write metadata, and data files of the right length with nothing in them."""
    (folder / ".metadata").write_bytes(metadata)
    for name, stored in contents_of(LocalStore(folder), ".metadata").files.items():
        with (folder / name).open("wb") as file:
            file.truncate(stored.end)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Save checkpoints with the PyTorch of this environment, in a process of its own."""
    folder = tmp_path_factory.mktemp("saved")
    script = Path(__file__).with_name("saves.py")
    finished = subprocess.run([sys.executable, script, folder], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return Saved(folder, json.loads(finished.stdout))


@pytest.fixture(scope="session")
def old() -> str:
    """Return an interpreter with PyTorch 2.14.1, for tests with the marker old_torch."""
    python = str(ensure_old_python())
    assert environment_of(python)["torch"]["version"].startswith("2.14.1")
    return python


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Copy a real checkpoint, with the times that a save leaves: metadata last."""

    def copy(case: str = "plain", version: str = "2.15.0", name: str = "step-100") -> Path:
        folder = tmp_path / name
        shutil.copytree(DATA / f"torch-{version}" / case, folder)
        for path in folder.iterdir():
            age = 1_000_000_000 + (path.suffix == ".metadata" or path.name == ".metadata")
            os.utime(path, (age, age))
        return folder

    return copy
