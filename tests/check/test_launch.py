"""Launch lines: what they set, what they start, what they pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.check import launch_rules
from keepstep.check.launch import BadLaunchError, read_launch
from keepstep.check.scene import see
from keepstep.check.sources import read_sources
from tests.check.job import IMPORTS, READY, codes, look_at, question, write_job

ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument({names}, type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
"""
OLD = "python -m torch.distributed.launch --nproc_per_node=8 train.py"


@pytest.mark.parametrize(
    ("line", "launcher", "variables"),
    [
        ("torchrun train.py", "torchrun", {}),
        ("A=1 B='x y' torchrun train.py lr=3", "torchrun", {"A": "1", "B": "x y"}),
        ("export A=1; env B=2 python -m torch.distributed.run t.py", "torchrun", None),
        (OLD, "torch.distributed.launch", {}),
        ("srun --export=ALL,A=1 bin/torchrun t.py", "torchrun", {"A": "1"}),
        ("mpirun -x A=1 python t.py", "mpirun", {"A": "1"}),
        ("python t.py", "python", {}),
        ("", "", {}),
    ],
)
def test_what_a_line_says(line: str, launcher: str, variables: dict[str, str] | None) -> None:
    launch = read_launch(line)
    assert launch.launcher == launcher
    assert launch.variables == ({"A": "1", "B": "2"} if variables is None else variables)


def test_options_of_launcher_and_script_are_kept_apart() -> None:
    launch = read_launch("torchrun --nproc-per-node 8 train.py --backend=gloo --fast --steps 3")
    assert launch.launcher_options == {"nproc_per_node": "8"}
    assert launch.options == {"backend": "gloo", "fast": "", "steps": "3"}


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(BadLaunchError, match="wanted one command line"):
        read_launch("A='1 torchrun train.py")


def test_the_old_launcher_passes_an_option_with_a_dash(tmp_path: Path) -> None:
    only = ARGUMENTS.format(names='"--local_rank"')
    both = ARGUMENTS.format(names='"--local-rank", "--local_rank"')
    assert "KS601" in codes(look_at(tmp_path / "a", IMPORTS, only, launch=OLD))
    assert "KS601" not in codes(look_at(tmp_path / "b", IMPORTS, both, launch=OLD))
    assert "KS601" not in codes(look_at(tmp_path / "c", IMPORTS, only, launch="torchrun t.py"))
    loose = only.replace("parse_args()", "parse_known_args()[0]")
    assert "KS601" not in codes(look_at(tmp_path / "d", IMPORTS, loose, launch=OLD))


def test_torchrun_passes_no_local_rank(tmp_path: Path) -> None:
    only = ARGUMENTS.format(names='"--local-rank"')
    assert "KS602" in codes(look_at(tmp_path / "a", IMPORTS, only, launch="torchrun t.py"))
    assert "KS602" not in codes(
        look_at(tmp_path / "b", IMPORTS, only, READY, launch="torchrun t.py")
    )


@pytest.mark.parametrize(("gpus", "finds"), [(4, True), (8, False), (None, False)])
def test_more_ranks_than_devices(gpus: int | None, finds: bool, tmp_path: Path) -> None:
    asked = question(write_job(tmp_path, IMPORTS, READY), launch="torchrun --nproc-per-node 8 t.py")
    scene = see(read_sources(asked.script), asked.leap, asked.launch, {})
    assert [each.code for each in launch_rules.check(scene, gpus)] == ["KS603"] * finds


def test_one_visible_device_in_the_line_and_an_index_in_the_code(tmp_path: Path) -> None:
    line = "CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py"
    unbound = READY.replace('device_id=torch.device("cuda", local_rank), ', "")
    assert "KS103" in codes(look_at(tmp_path / "a", IMPORTS, unbound, launch=line))
    assert "KS103" not in codes(look_at(tmp_path / "b", IMPORTS, unbound, launch="python t.py"))
