"""Training that 2.15 has begun goes on in a real PyTorch 2.14.1, and comes back.

Not among the tests that run by themselves, because the environment is a download of 3 GB:
``make test TESTS="-m old_torch tests/test_checkpoints_old_torch.py"``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.testload import load_with
from tests.checkpoint.old_torch import ensure_old_python
from tests.running import BYTELM, ROOT, environment

pytestmark = [pytest.mark.old_torch, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def old() -> str:
    return str(ensure_old_python())


def train(python: str, root: Path, steps: int, *options: str) -> str:
    """Train two ranks up to a step and return what they say."""
    done = subprocess.run(
        [
            *(python, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *(BYTELM, "--steps", str(steps), "--checkpoint", str(root), "--every", "5", *options),
        ],
        cwd=ROOT,
        env=environment(PYTHONPATH=str(ROOT / "src"), CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def note(root: Path, step: int) -> dict[str, str]:
    found: dict[str, str] = json.loads((root / f"step-{step:06d}" / "keepstep.json").read_text())
    return found


def test_training_goes_back_to_the_old_version_and_forth_again(old: str, tmp_path: Path) -> None:
    written, plain = tmp_path / "written-old", tmp_path / "as-installed"
    train(sys.executable, written, 5, "--readable-by", "2.14")
    train(sys.executable, plain, 5)
    assert note(written, 5)["state_sha256"] == note(plain, 5)["state_sha256"]
    both = [load_with(LocalStore(written / "step-000005"), each) for each in (old, sys.executable)]
    assert [loaded.record.verdict for loaded in both] == ["pass", "pass"]
    assert both[0].record.digests == both[1].record.digests
    assert load_with(LocalStore(plain / "step-000005"), old).record.verdict == "fail"

    there = shutil.copytree(written, tmp_path / "there")
    said = train(old, there, 10)
    assert f"going on from {there / 'step-000005'}" in said
    assert "not what was saved" not in said
    assert note(there, 10)["torch"].startswith("2.14.1")
    said = train(sys.executable, there, 15)
    assert f"going on from {there / 'step-000010'}" in said
    assert note(there, 15)["torch"].startswith("2.15")


def test_job_train_reads_the_new_form_in_the_old_version_too(old: str, tmp_path: Path) -> None:
    train(sys.executable, tmp_path, 5)
    assert f"going on from {tmp_path / 'step-000005'}" in train(old, tmp_path, 10)
