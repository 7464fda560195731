from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data" / "checkpoint"

Checkpoint = Callable[..., Path]


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
