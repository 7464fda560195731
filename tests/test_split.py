"""A rank is lost when one other rank alone has completed the step: nobody can compare its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import Run, run

SCRIPT = "tests/jobs/split.py"

pytestmark = pytest.mark.timeout(300)


def split(folder: Path, workers: int, *flipped: str) -> Run:
    options = ("--workers", str(workers), "--spares", "1")
    found = run(folder, *options, script=(SCRIPT, str(folder), *flipped))
    assert found.exit_code == 0, found.output
    return found


@pytest.fixture(scope="module", params=[3, 4])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def undisturbed(workers: int, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "lost").touch()
    found = split(folder, workers)
    assert found.faults == []
    return found.digest


def test_the_step_is_repeated_and_the_state_is_the_same(
    workers: int, undisturbed: str, tmp_path: Path
) -> None:
    found = split(tmp_path, workers)
    assert found.faults == [("kill", 2, "replace")]
    assert [r["lost_steps"] for r in found.summary["recoveries"]] == [1]
    assert [r["state_from"] for r in found.summary["recoveries"]] == ["live"]
    # Of four, two agree on the state before the step: that needs no proof.
    assert len(found.of_kind("proven")) == (1 if workers == 3 else 0)
    assert "nobody could compare its state" in found.output
    assert found.digest == undisturbed


@pytest.mark.parametrize("flipped", ["0", "1"])
def test_a_flipped_bit_is_found_or_left_behind(
    flipped: str, workers: int, undisturbed: str, tmp_path: Path
) -> None:
    found = split(tmp_path, workers, flipped)
    assert found.digest == undisturbed
    starts = [(event["source"], event["start_step"]) for event in found.of_kind("form")[1:]]
    if workers == 3:
        assert starts == [("live", 5), ("snapshot", 0)]
        assert "was repeated and ended in another state" in found.output
    elif flipped == "0":
        assert starts == [("live", 5)]
    else:
        assert starts[-1] == ("snapshot", 0)
        assert "differ" in found.output
