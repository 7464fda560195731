"""Runs to open windows on: real checkpoints of both versions, and test-loads that were recorded."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import testload
from keepstep.checkpoint.record import Record, address_of, identify, write_record
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import DATA

ENVIRONMENT: dict[str, Any] = {
    "executable": "/old/bin/python",
    "python": "3.11.7",
    "torch": {"version": "2.14.1", "git": "abc"},
}
TOMORROW = datetime.now(UTC).date() + timedelta(days=1)


class Run:
    """The folder of a run below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run"
        self.path.mkdir()
        self.store = LocalStore(self.path)
        self.ledger = folder / "run.keepstep.jsonl"
        self.copies = folder / "run.protected"

    def save(self, *steps: int, version: str = "2.14.1") -> None:
        """Save checkpoints with the times that a trainer leaves: metadata last."""
        for step in steps:
            target = self.path / f"step-{step}"
            shutil.copytree(DATA / f"torch-{version}" / "plain", target)
            for path in target.iterdir():
                age = 1_000_000_000 + step + (path.name == ".metadata")
                os.utime(path, (age, age))

    def test_load(self, step: int, verdict: str = "pass", error: str = "") -> None:
        """Record a test-load."""
        store = self.store.below(f"step-{step}")
        write_record(
            Record(
                address=address_of(store),
                identity=identify(store),
                environment=ENVIRONMENT,
                python="/old/bin/python",
                when="2026-11-29T20:00:00+00:00",
                verdict=verdict,
                level="bytes",
                error=error,
                bytes=98,
                digests={"w": "00"},
            )
        )

    def steps(self) -> list[int]:
        """Return the steps that are there, oldest first."""
        return sorted(int(p.name[5:]) for p in self.path.iterdir() if p.name.startswith("step-"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give an empty run; test-loads are recorded apart, and their interpreter is as it was."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(testload, "environment_of", lambda python: ENVIRONMENT)
    return Run(tmp_path)


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
