"""Every fault, with real processes and real signals, on the real job.

Several faults share one run where they do not touch each other: starting PyTorch takes longer than
surviving them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import BYTELM, Run, inject, run

STEPS = 24
SCRIPT = (BYTELM, "--steps", str(STEPS), "--seed", "3")

pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = run(tmp_path_factory.mktemp("undisturbed"), "--workers", "3", script=SCRIPT)
    assert found.exit_code == 0, found.output
    return found


def survived(folder: Path, faults: list[str], spares: int, *options: str) -> Run:
    found = run(
        folder, "--workers", "3", "--spares", str(spares), *options, *inject(*faults),
        script=SCRIPT,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert found.summary["outcome"] == "completed"
    assert found.summary["steps"] == STEPS
    assert found.summary["injections_fired"] == list(range(len(faults)))
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    return found


def test_processes_that_die(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["kill@4:1", "segv@9:0", "exit@14:2=3"], spares=3)
    assert found.faults == [
        ("kill", 1, "replace"), ("segv", 0, "replace"), ("exit", 2, "replace"),
    ]  # fmt: skip
    assert found.digest == undisturbed.digest
    # One where the rank was lost while one other alone had got further: see test_split.py.
    assert all(r["lost_steps"] <= 1 for r in found.summary["recoveries"])


def test_processes_that_stall(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["stop@4:2", "hang@9:0", "gil@14:1"], 3, "--patience", "2")
    assert found.faults == [
        ("stop", 2, "replace"), ("hang", 0, "replace"), ("gil", 1, "replace"),
    ]  # fmt: skip
    assert found.digest == undisturbed.digest
    evidence = {event["fault"]: event["evidence"] for event in found.of_kind("stall")}
    assert "stopped" in evidence["stop"]
    assert "interpreter lock" in evidence["gil"]
    assert "others are further" in evidence["hang"]


def test_steps_that_raise_and_memory_that_runs_out(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["raise@4:1", "oom@9:2"], spares=1)
    assert found.faults == [("raise", 1, "retry"), ("oom", 2, "replace")]
    assert found.digest == undisturbed.digest


def test_a_flipped_bit_is_found_and_undone(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["corrupt@15:0", "kill@15:1"], 2)
    assert {fault for fault, _, _ in found.faults} == {"corrupt", "kill"}
    assert found.digest == undisturbed.digest
    assert max(r["lost_steps"] for r in found.summary["recoveries"]) > 0


def test_a_flipped_bit_alone_is_found_before_the_end(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["corrupt@12:2"], spares=1)
    assert found.faults == [("corrupt", 2, "replace")]
    assert found.digest == undisturbed.digest


def test_a_newcomer_keeps_the_snapshot_to_which_the_job_may_have_to_go_back(
    undisturbed: Run, tmp_path: Path
) -> None:
    """Of rank 2's place, which keeps snapshots; the one after 20 steps shows the flipped bit."""
    found = survived(tmp_path, ["kill@12:2", "corrupt@17:1"], spares=2)
    assert found.faults == [("kill", 2, "replace"), ("corrupt", 1, "replace")]
    assert found.digest == undisturbed.digest
    assert [r["state_from"] for r in found.summary["recoveries"]] == ["live", "snapshot"]


def test_two_faults_in_one_step_and_one_during_a_recovery(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(tmp_path, ["kill@6:1", "kill@6:2", "kill@recovery:0"], spares=3)
    assert sorted(found.faults) == [
        ("kill", 0, "replace"), ("kill", 1, "replace"), ("kill", 2, "replace"),
    ]  # fmt: skip
    assert found.digest == undisturbed.digest


def test_spare_and_coordinator_die_too(undisturbed: Run, tmp_path: Path) -> None:
    found = survived(
        tmp_path, ["kill@4:spare", "kill@8:coordinator", "kill@8:1", "stop@14:2"], spares=3
    )
    assert found.summary["spares_lost"] == 1
    assert found.summary["coordinator_restarts"] >= 1
    assert {fault for fault, _, _ in found.faults} == {"kill", "stop"}
    assert found.digest == undisturbed.digest


def test_a_straggler_is_swapped_at_a_step_boundary(tmp_path: Path) -> None:
    script = (BYTELM, "--steps", "80", "--seed", "3")
    options = ("--workers", "3", "--spares", "1")
    found = run(tmp_path, *options, *inject("slow@5:2=6"), script=script)
    assert found.exit_code == 0, found.output
    assert found.faults[0] == ("slow", 2, "replace")
    (noticed,) = found.of_kind("straggler")
    assert noticed["score"] > 1.7
    assert found.summary["recoveries"][0]["lost_steps"] == 0


def test_without_a_spare_the_job_shrinks_and_grows_back(tmp_path: Path) -> None:
    script = (BYTELM, "--steps", "150", "--seed", "3")
    options = ("--workers", "3", "--on-loss", "shrink")
    found = run(tmp_path, *options, *inject("kill@5:1"), script=script)
    assert found.exit_code == 0, found.output
    assert found.faults == [("kill", 1, "shrink")]
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    sizes = [event["world_size"] for event in found.of_kind("live")]
    assert sizes == [3, 2, 3]


def test_without_a_spare_the_job_waits_for_the_next_process(
    undisturbed: Run, tmp_path: Path
) -> None:
    found = survived(tmp_path, ["kill@5:1"], 0, "--on-loss", "wait")
    assert found.digest == undisturbed.digest
    assert found.of_kind("waiting_for_spare")


def test_a_step_that_always_fails_ends_the_job(tmp_path: Path) -> None:
    options = ("--workers", "2", "--spares", "2")
    script = ("tests/jobs/broken_step.py",)
    found = run(tmp_path, *options, script=script)
    assert found.exit_code == 1
    assert "step 3 failed 3 times" in found.output
