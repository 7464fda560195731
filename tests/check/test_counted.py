"""Communicators: counted on a fake process group at the real world size, in one process."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.check.counted import SOCKETS, UNUSED_NVLINK, count, sentence, written_layout
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.layout import BadLayoutError, Layout, read_layout
from keepstep.check.look import look_at_code
from keepstep.check.scene import Part
from tests.check.job import IMPORTS, READY, question, write_job

MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", {shape}, mesh_dim_names=("dp", "tp"))
"""


def _count(
    folder: Path, source: str, *groups: str, **changes: str
) -> tuple[list[Finding], list[NotLooked]]:
    asked = question(write_job(folder, IMPORTS, READY, source), **changes)  # type: ignore[arg-type]
    _, scene = look_at_code(asked)
    return count(scene, replace(asked, groups=groups))


def test_4096_ranks_are_counted_in_one_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (seen,), unseen = _count(tmp_path, "", "mesh=dp:512,tp:8 flat=dp+tp")
    assert (seen.code, seen.severity) == ("KS303", Severity.CHANGES)
    assert "4,096 ranks make 520 groups beside the world; a rank is in 2" in seen.text
    assert f"{2 * UNUSED_NVLINK} MiB" in seen.text
    assert f"{2 * SOCKETS} MiB over sockets" in seen.text
    assert not unseen


def test_a_mesh_over_the_whole_world_costs_nothing_more(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (seen,), _ = _count(tmp_path, "", "mesh=dp:64")
    assert seen.severity is Severity.NOTE
    assert "it is the world itself" in seen.text


def test_a_mesh_that_is_written_in_the_code_is_counted_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (seen,), unseen = _count(tmp_path, MESH.format(shape="(4, 2)"))
    assert seen.line > 0
    assert "mesh=dp:4,tp:2: 8 ranks make 6 groups" in seen.text
    assert not unseen


def test_a_mesh_of_unknown_size_is_listed(tmp_path: Path) -> None:
    found, (unseen,) = _count(tmp_path, MESH.format(shape="(world // 8, 8)"))
    assert not found
    assert not unseen.matters
    assert "--groups" in unseen.mend


def test_without_torch_a_count_that_was_asked_for_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepstep.check.counted.interpreter", lambda question: ())
    found, (unseen,) = _count(tmp_path, "", "mesh=dp:4,tp:2")
    assert not found
    assert unseen.matters


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "wanted the dimensions"),
        ("dp:512", "saw 'dp:512'"),
        ("mesh=dp:x", "saw 'mesh=dp:x'"),
        ("mesh=dp:2,dp:2", "twice"),
        ("mesh=dp:0", "0 ranks"),
        ("mesh=dp:1000000,tp:8", "8,000,000 ranks"),
        ("mesh=dp:4,tp:2 flat=cp", "cp is no dimension"),
    ],
)
def test_a_bad_layout_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadLayoutError, match=says):
        read_layout(text)


def test_the_largest_number_of_groups_of_any_rank_counts() -> None:
    layout = Layout(names=("dp", "tp"), sizes=(2, 2), world=4)
    answer = {"groups": 4, "least": 1, "most": 3, "of_rank_0": [["dp", 2]]}
    assert "a rank is in 3" in sentence(layout, answer)


@pytest.mark.parametrize(
    "shape", ["()", "(0, 8)", "(True, 8)[0:1]", "sizes", "(n, 8)", "(9**9, 8)"]
)
def test_only_whole_written_sizes_are_a_layout(shape: str, tmp_path: Path) -> None:
    asked = question(write_job(tmp_path, IMPORTS, MESH.format(shape=shape)))
    part: Part = look_at_code(asked)[1].parts[0]
    call = next(node for node in part.nodes if isinstance(node, ast.Call))
    assert written_layout(part, call) is None
