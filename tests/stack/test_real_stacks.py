"""The two stacks whose locks ship, with real PyTorch builds.

Not among the tests that run by themselves: ``make test TESTS="-m old_torch tests/stack"`` makes
what is missing in the user's cache, a download of 3 GB for each.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from keepstep.stack.asked import ask_fingerprint, stack_variables
from keepstep.stack.create import create
from keepstep.stack.material import differences, drift, material, same_nccl
from keepstep.stack.named import Stack, at_creation

pytestmark = [pytest.mark.old_torch, pytest.mark.timeout(1800)]

GROUPS = """
import json, sys, torch.distributed as dist
from keepstep.stack.groups import groups, watch
watch()
dist.init_process_group(rank=0, world_size=1, init_method="file://" + sys.argv[1], backend="gloo")
dist.new_group([0], backend="cpu:gloo")
print(json.dumps(groups()))
"""

USER_CACHE = os.environ.get("XDG_CACHE_HOME", "")  # the tests beside this one have their own


@pytest.fixture(params=["2.14.1", "2.15.0"])
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return real(request.param, monkeypatch)


def real(version: str, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("XDG_CACHE_HOME", USER_CACHE)
    return create(version, torch=version)


def test_a_stack_is_what_it_says_and_as_it_was_made(stack: Stack) -> None:
    found = ask_fingerprint(stack)
    assert found["torch"]["version"].startswith(stack.torch)
    assert found["nccl"]["version"] == "2.30.7"
    assert found["duplicates"] == []
    built = {"2.14.1": "ProcessGroupNCCL", "2.15.0": "ProcessGroupNCCL2"}
    assert found["backend_impls"]["nccl"] == built[stack.torch]
    assert found["checkpoint_format"]["form"] == {"2.14.1": "C", "2.15.0": "D"}[stack.torch]
    then = at_creation(stack)
    assert then is not None
    assert drift(then, found) == []


def test_its_own_files_are_a_small_part_of_it(stack: Stack) -> None:
    assert stack.own_bytes < 0.1 * stack.bytes


def test_two_stacks_differ_in_torch_and_share_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (ask_fingerprint(real(version, monkeypatch)) for version in ("2.14.1", "2.15.0"))
    fields = [each.field for each in differences(old, new)]
    assert fields[:2] == ["torch.version", "torch.git"]
    assert {"group.nccl", "checkpoint.form", "library.libtorch_cuda.so"} <= {*fields}
    assert same_nccl(old, new) == "2.30.7"


def test_the_lever_is_seen(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", {"2.14.1": "1", "2.15.0": "0"}[stack.torch])
    found = ask_fingerprint(stack)
    built = {"2.14.1": "ProcessGroupNCCL2", "2.15.0": "ProcessGroupNCCL"}
    assert found["backend_impls"]["nccl"] == built[stack.torch]
    assert "variable.TORCH_DIST_USE_NCCL2" in material(found)


def test_groups_are_watched(stack: Stack, tmp_path: Path) -> None:
    command = stack.command("-c", GROUPS, str(tmp_path / "store"))
    done = subprocess.run(command, env=stack_variables(stack), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert [each["asked"] for each in found] == ["gloo", "cpu:gloo"]
    assert {name for each in found for name in each["classes"].values()} == {"ProcessGroupGloo"}
