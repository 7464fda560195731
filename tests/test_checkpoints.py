"""A job that is killed and started again ends as if nothing had happened, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running import (
    BYTELM,
    ROOT,
    TORCHRUN,
    Run,
    command,
    environment,
    inject,
    is_alive,
    processes_of,
    run,
)

STEPS, EVERY = 24, 8

pytestmark = pytest.mark.timeout(900)


def script(checkpoints: Path | None, steps: int = STEPS, *options: str) -> tuple[str, ...]:
    plain = (BYTELM, "--steps", str(steps), "--seed", "3", *options)
    if checkpoints is None:
        return plain
    return (*plain, "--checkpoint", str(checkpoints), "--every", str(EVERY))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = run(tmp_path_factory.mktemp("undisturbed"), "--workers", "3", script=script(None))
    assert found.exit_code == 0, found.output
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a job of three ranks left checkpoints before all its processes were killed."""
    folder = tmp_path_factory.mktemp("killed")
    root = folder / "checkpoints"
    process = subprocess.Popen(
        command(folder, "--workers", "3", script=script(root, 100_000)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if f"step-{2 * EVERY:06d} after" in line:
                break
        family = processes_of(process.pid)
        assert len(family) >= 5  # three workers, coordinator, store
        for pid in [process.pid, *family]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()
    finally:
        process.kill()
        process.wait()
    assert saved_steps(root)[:2] == [EVERY, 2 * EVERY]
    for later in saved_steps(root)[2:]:  # it was faster than we
        (root / f"step-{later:06d}").rename(root / f"later-{later}")
    return root


@pytest.fixture
def checkpoints(killed: Path, tmp_path: Path) -> Path:
    """What it left, for one test."""
    return shutil.copytree(killed, tmp_path / "checkpoints")


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("step-*") if path.name[5:].isdigit())


def saved_state(root: Path, step: int) -> str:
    return str(note(root, step)["state_sha256"])


def note(root: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f"step-{step:06d}" / "keepstep.json").read_text())
    return found


def finished(found: Run) -> Run:
    assert found.exit_code == 0, found.output
    assert found.summary["steps"] == STEPS
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    return found


def test_a_killed_job_goes_on_and_ends_like_an_undisturbed_one(
    undisturbed: Run, checkpoints: Path, tmp_path: Path
) -> None:
    found = finished(run(tmp_path, "--workers", "3", script=script(checkpoints)))
    assert [event["step"] for event in found.of_kind("from_checkpoint")] == [2 * EVERY]
    assert found.digest == undisturbed.digest
    assert saved_state(checkpoints, STEPS) == undisturbed.digest
    assert saved_steps(checkpoints) == [EVERY, 2 * EVERY, STEPS]
    assert not list(checkpoints.glob("*.saving"))


def test_from_the_one_before_a_damaged_one_and_through_lost_ranks(
    undisturbed: Run, checkpoints: Path, tmp_path: Path
) -> None:
    newest = checkpoints / f"step-{2 * EVERY:06d}"
    data = bytearray((newest / "__1_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "__1_0.distcp").write_bytes(data)
    faults = inject(f"kill@{EVERY + 2}:1", f"kill@{2 * EVERY}:0", f"kill@{STEPS - 1}:2")
    found = finished(
        run(tmp_path, "--workers", "3", "--spares", "3", *faults, script=script(checkpoints))
    )
    assert f"{newest} cannot be used: __1_0.distcp is damaged" in found.output
    assert [event["step"] for event in found.of_kind("from_checkpoint")] == [EVERY]
    assert found.summary["injections_fired"] == [0, 1, 2]
    assert found.digest == undisturbed.digest
    assert saved_state(checkpoints, STEPS) == undisturbed.digest
    assert newest.with_name(f"{newest.name}.set-aside").is_dir()


def test_with_another_number_of_ranks_that_shrinks(checkpoints: Path, tmp_path: Path) -> None:
    options = ("--workers", "2", "--on-loss", "shrink")
    faults = inject(f"kill@{2 * EVERY + 1}:0")
    found = finished(run(tmp_path, *options, *faults, script=script(checkpoints)))
    assert [event["step"] for event in found.of_kind("from_checkpoint")] == [2 * EVERY]
    assert saved_state(checkpoints, STEPS) == found.digest
    assert note(checkpoints, STEPS)["world_size"] == found.of_kind("live")[-1]["world_size"]


def test_under_plain_torchrun(undisturbed: Run, checkpoints: Path) -> None:
    done = subprocess.run(
        [TORCHRUN, "--nproc-per-node", "3", *script(checkpoints, STEPS, "--keep", "2")],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"going on from {checkpoints / f'step-{2 * EVERY:06d}'}" in done.stderr
    assert saved_state(checkpoints, STEPS) == undisturbed.digest
    assert saved_steps(checkpoints) == [2 * EVERY, STEPS]


def test_ranks_that_die_while_they_write_their_part(tmp_path: Path) -> None:
    job = "tests/jobs/dies_while_saving.py"
    calm, root = tmp_path / "calm", tmp_path / "checkpoints"
    calm.mkdir()
    wanted = run(calm, "--workers", "2", script=(job, str(calm / "checkpoints"), "6"))
    deaths = ("1@2", "0@4", "1@6", "0@6")  # the last two while all wait for the last checkpoint
    found = run(tmp_path, "--workers", "2", "--spares", "2", script=(job, str(root), "6", *deaths))
    assert found.exit_code == wanted.exit_code == 0, found.output + wanted.output
    assert {path.name for path in tmp_path.glob("died-*")} == {f"died-{death}" for death in deaths}
    assert saved_state(root, 6) == found.digest == wanted.digest
    assert found.of_kind("checkpoint_left_out")
    assert saved_steps(calm / "checkpoints") == [2, 4, 6]
    assert saved_steps(root)[-1] == 6
    for step in saved_steps(root):  # a job that goes back some steps saves them after all
        assert saved_state(root, step) == saved_state(calm / "checkpoints", step)
    assert not list(root.glob("*.saving"))


def test_a_state_that_does_not_fit_ends_the_job_and_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-000004"
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(b"of another program")
    found = run(tmp_path, "--workers", "2", script=script(tmp_path / "checkpoints"))
    assert found.exit_code == 1
    assert "none of 1 checkpoints can be used; the newest: no keepstep.json" in found.output
    assert list(folder.iterdir())
