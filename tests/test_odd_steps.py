"""Steps that are hard to undo: the state is that of an undisturbed run, or all go further back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import Run, run

pytestmark = pytest.mark.timeout(300)


def odd_steps(folder: Path, mode: str) -> Run:
    script = ("tests/jobs/odd_steps.py", str(folder), mode)
    found = run(folder, "--workers", "3", "--spares", "1", script=script)
    assert found.exit_code == 0, found.output
    return found


@pytest.mark.parametrize(
    ("mode", "source"), [("late", "snapshot"), ("hidden", "live"), ("data", "snapshot")]
)
def test_a_rank_lost_in_an_odd_moment_leaves_no_trace(
    mode: str, source: str, tmp_path: Path
) -> None:
    plain, disturbed = tmp_path / "plain", tmp_path / "disturbed"
    plain.mkdir()
    disturbed.mkdir()
    (plain / "lost").touch()
    undisturbed, found = odd_steps(plain, mode), odd_steps(disturbed, mode)
    assert undisturbed.faults == []
    assert ("kill", 1, "replace") in found.faults
    assert found.summary["recoveries"][0]["state_from"] == source
    assert found.digest == undisturbed.digest
    assert len(found.of_kind("changed_late")) == (mode == "late")
    assert ("left out" in found.output) == (mode == "hidden")
