"""With a real PyTorch 2.14.1: what it refuses, and each way to make it load.

Not among the tests that run by themselves, because its environment is a download of 3 GB:
``make test TESTS="-m old_torch tests/checkpoint"``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.checkpoint.downgrade import convert, put_in_place
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.testload import load_with
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from tests.checkpoint.conftest import DATA, Checkpoint, Saved

pytestmark = [pytest.mark.old_torch, pytest.mark.timeout(1800)]

REFUSAL = "ValueError: too many values to unpack (expected 5) (in the metadata)"


@pytest.fixture(scope="session")
def new(saved: Saved) -> dict[str, str]:
    """What PyTorch 2.15 loads of what it saved in its own form."""
    return digests(saved.folder / "new")


def digests(folder: Path, python: str = sys.executable) -> dict[str, str]:
    record = load_with(LocalStore(folder), python).record
    assert (record.verdict, record.error) == ("pass", "")
    return record.digests


@pytest.mark.parametrize(
    "case", ["plain", "noncontig", "nested", "objects", "zero_d", "dtensor2", "sharded_tensor"]
)
def test_a_downgraded_checkpoint_loads_bit_for_bit(
    case: str, old: str, checkpoint: Checkpoint
) -> None:
    folder = checkpoint(case)
    store = LocalStore(folder)
    before = digests(folder)
    for conversion in convert(store, "2.14"):
        put_in_place(store, conversion)
    assert digests(folder, old) == before


@pytest.mark.parametrize(
    "name",
    ["old", "own", "remote", "two-files", "everywhere", "async-thread", "async-process"],
)
def test_what_the_writer_writes_loads(
    name: str, old: str, saved: Saved, new: dict[str, str]
) -> None:
    assert digests(saved.folder / name, old) == new


def test_safetensors_files_load_as_they_are(old: str) -> None:
    data = DATA / "torch-2.15.0"
    assert digests(data / "hf", old) == digests(data / "plain")  # the same tensors


def test_metadata_of_each_rank_loads(old: str, saved: Saved, new: dict[str, str]) -> None:
    found = digests(saved.folder / "rank-local", old)
    assert found == {f"rank 0: {name}": digest for name, digest in new.items()}


def test_the_shim_loads_what_nobody_has_changed(
    old: str,
    saved: Saved,
    new: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = saved.folder / "new"
    before = (folder / ".metadata").read_bytes()
    refused = load_with(LocalStore(folder), old).record
    assert (refused.verdict, refused.error) == ("fail", REFUSAL)
    assert execute(["checkpoint", "shim", "--out", str(tmp_path / "shim")]) == ExitCode.PASS
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shim"))
    assert digests(folder, old) == new
    assert digests(folder) == new
    assert (folder / ".metadata").read_bytes() == before


def test_the_command_in_the_old_environment(
    old: str,
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    load = ["checkpoint", "test-load", str(saved.folder / "old"), "--python", old]
    assert execute(load) == ExitCode.PASS
    assert "PyTorch 2.14.1" in capsys.readouterr().out.splitlines()[0]
    load[2] = str(saved.folder / "new")
    assert execute(load) == ExitCode.FAIL


PROGRAM = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed import checkpoint as dcp
rank, folder, form = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if torch.__version__.startswith("2.15") and form == "old-format":
    from keepstep.checkpoint import write_old_format
    write_old_format()
store = dist.FileStore(folder + ".store", 2)
limit = timedelta(seconds=300)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
whole = torch.arange(24, dtype=torch.float32).reshape(6, 4)
mesh = init_device_mesh("cpu", (2,))
dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
# An interpreter that takes itself apart while a thread of gloo still runs may abort.
import os
os._exit(0)
"""


@pytest.mark.parametrize("first", ["old", "new"])
@pytest.mark.parametrize("form", ["as-installed", "old-format"])
def test_ranks_of_both_versions_save_together_in_the_old_form(
    first: str, form: str, old: str, tmp_path: Path
) -> None:
    pythons = [old, sys.executable] if first == "old" else [sys.executable, old]
    arguments = [str(tmp_path / "step-1"), form]
    ranks = [
        subprocess.Popen([python, "-c", PROGRAM, str(rank), *arguments], stderr=subprocess.PIPE)
        for rank, python in enumerate(pythons)
    ]
    said = [process.communicate(timeout=600)[1].decode() for process in ranks]
    if form == "as-installed":
        assert any(process.returncode for process in ranks)
        assert any("too many values to unpack (expected 5)" in text for text in said)
        return
    assert [process.returncode for process in ranks] == [0, 0], said
    assert digests(tmp_path / "step-1", old) == digests(tmp_path / "step-1")


def test_a_trainer_may_keep_the_writer_after_going_back(old: str, tmp_path: Path) -> None:
    program = (
        "import torch; from torch.distributed import checkpoint as dcp\n"
        "from keepstep.checkpoint import writer\n"
        f"for target in ({str(tmp_path / 'a')!r}, {f'file://{tmp_path}/b'!r}):\n"
        "    dcp.save({'w': torch.ones(3)}, storage_writer=writer(target), no_dist=True)\n"
    )
    source = str(Path(__file__).parent.parent.parent / "src")
    variables = {**os.environ, "PYTHONPATH": source}
    subprocess.run([old, "-c", program], env=variables, check=True)
    assert digests(tmp_path / "a", old) == digests(tmp_path / "b", old)
