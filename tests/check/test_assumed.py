"""The backend that a look takes a group to have is named, with where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.job import IMPORTS, look_at

OPTION = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default={default})
args = parser.parse_args()
dist.init_process_group(args.dist_backend)
"""
CUDA = "x = torch.zeros(1).cuda()\n"


@pytest.mark.parametrize(
    ("parts", "launch", "said"),
    [
        (('dist.init_process_group("NCCL")',), "", "nccl, as it is written ({}:6)"),
        (("dist.init_process_group(dist.Backend.GLOO)",), "", "gloo, as it is written ({}:6)"),
        (
            ('name = "gloo"\n', "dist.init_process_group(name)"),
            "",
            "gloo, as it is written for name ({}:7)",
        ),
        (
            ('dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',),
            "",
            "gloo or nccl, as it is written ({}:6)",
        ),
        (
            (OPTION.format(default='"gloo"'),),
            "torchrun train.py --lr 3",
            "gloo, the script's default of --dist-backend, which the launch line does not give "
            "({}:11)",
        ),
        (
            (OPTION.format(default='"gloo"'),),
            "torchrun train.py --dist-backend nccl-legacy",
            "nccl-legacy, by --dist-backend in the launch line ({}:11)",
        ),
        (
            (OPTION.format(default="guess()"), CUDA),
            "",
            "nccl, assumed: what is asked for at {}:11 is only known when it runs, and the code "
            "names CUDA",
        ),
        (
            ("dist.init_process_group()",),
            "",
            "gloo, assumed: none is asked for at {}:6, and the code names no CUDA",
        ),
        (
            ("dist.init_process_group(**given)\n", CUDA),
            "",
            "nccl, assumed: the arguments at {}:6 are only known when it runs, and the code names "
            "CUDA",
        ),
        (
            (CUDA,),
            "",
            "nccl, assumed: no init_process_group in the code that was read, which names CUDA",
        ),
        (
            (),
            "",
            "nccl for the variables, none for the code, assumed: no init_process_group in the code "
            "that was read, which names no CUDA",
        ),
    ],
)
def test_the_backend_is_named_with_its_source(
    tmp_path: Path, parts: tuple[str, ...], launch: str, said: str
) -> None:
    report = look_at(tmp_path, IMPORTS, *parts, launch=launch)
    assert report.backends == (said.format(tmp_path / "train.py"),)


def test_each_of_several_groups_is_told(tmp_path: Path) -> None:
    both = 'dist.init_process_group("gloo")\ndist.init_process_group("nccl")\n'
    assert [each.partition(",")[0] for each in look_at(tmp_path, IMPORTS, both).backends] == [
        "gloo",
        "nccl",
    ]
