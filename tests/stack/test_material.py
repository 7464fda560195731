"""What decides whether two runs ran on the same thing, and what does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from keepstep.stack.material import (
    differences,
    drift,
    material,
    packages_drift,
    same_nccl,
)

FINGERPRINT: dict[str, Any] = {
    "torch": {"version": "2.15.0+cu132", "git": "d0f2", "cuda": "13.2", "hip": None},
    "python": "3.11.7",
    "executable": "bin/python",
    "packages": {"torch": "2.15.0", "numpy": "2.4.6"},
    "libraries": [
        {"name": "libnccl.so.2", "path": "a/libnccl.so.2", "build_id": "aa"},
        {"name": "libtorch_cuda.so", "path": "a/libtorch_cuda.so", "build_id": "bb"},
    ],
    "duplicates": [],
    "nccl": {"version": "2.30.7", "path": "a/libnccl.so.2"},
    "driver": "580.1",
    "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-1"}, {"name": "NVIDIA H200", "uuid": "GPU-2"}],
    "links": {"0-1": "NV18"},
    "default_backends": {"cpu": "gloo", "cuda": "nccl"},
    "backend_impls": {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL2"},
    "groups": [
        {
            "name": "0",
            "ranks": [0, 1],
            "asked": "nccl",
            "classes": {"cuda": "ProcessGroupNCCL2"},
            "device": "cuda:0",
            "timeout_s": 600.0,
            "options": {},
        }
    ],
    "environment": {
        "NCCL_ALGO": {"value": "Ring", "status": "read", "to": "", "note": ""},
        "RANK": {"value": "0", "status": "read", "to": "", "note": ""},
    },
    "limits": {"memlock": 8},
    "host": "n1",
    "kernel": "6.1",
    "checkpoint_format": {"fields": 6, "form": "D", "how": "asked the class"},
    "reasons": {},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return a fingerprint in which one thing is another."""
    found = copy.deepcopy(FINGERPRINT)
    place: Any = found
    *keys, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in keys:
        place = place[key]
    place[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("torch/version", "2.14.1+cu130", "torch.version"),
        ("torch/git", "5c48", "torch.git"),
        ("torch/cuda", "13.0", "torch.cuda"),
        ("nccl/version", "2.29.7", "nccl"),
        ("libraries/0/build_id", "cc", "library.libnccl.so.2"),
        ("driver", "570.2", "driver"),
        ("gpus/1/name", "NVIDIA H100", "gpus"),
        ("groups/0/timeout_s", 1800.0, "group.timeouts"),
        ("environment/NCCL_ALGO/value", "Tree", "variable.NCCL_ALGO"),
        ("backend_impls/nccl", "ProcessGroupNCCL", "group.nccl"),
        ("duplicates", [{"name": "libnccl"}], "duplicates"),
        ("checkpoint_format/form", "C", "checkpoint.form"),
        ("packages/numpy", "2.5", "package.numpy"),
    ],
)
def test_what_is_material(path: str, value: Any, field: str) -> None:
    other = changed(path, value)
    assert material(other) != material(FINGERPRINT)
    assert [each.field for each in differences(FINGERPRINT, other) if each.material] == [field]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("host", "n2"),
        ("executable", "elsewhere/python"),
        ("libraries/0/path", "b/libnccl.so.2"),
        ("gpus/0/uuid", "GPU-9"),
        ("environment/RANK/value", "1"),
        ("groups/0/device", "cuda:1"),
        ("groups/0/name", "e141ae2001c0"),
        ("groups/0/ranks", [2, 3]),
        ("limits/memlock", 9),
        ("checkpoint_format/how", "by the version"),
    ],
)
def test_what_is_not(path: str, value: Any) -> None:
    other = changed(path, value)
    assert material(other) == material(FINGERPRINT)
    assert not any(each.material for each in differences(FINGERPRINT, other))


def test_the_class_of_a_group_is_material_whatever_its_name() -> None:
    legacy = changed("groups/0/classes/cuda", "ProcessGroupNCCL")
    found = [each.field for each in differences(FINGERPRINT, legacy)]
    assert found == ["group.classes", "group.timeouts"]
    more = copy.deepcopy(FINGERPRINT)
    more["groups"].append({**more["groups"][0], "name": "1"})
    assert material(more) == material(FINGERPRINT)


def test_a_library_that_cuda_loads_later_is_no_difference() -> None:
    later = copy.deepcopy(FINGERPRINT)
    more = {"name": "libcudnn_ops.so.9", "path": "a/libcudnn_ops.so.9", "build_id": "dd"}
    later["libraries"].append(more)
    assert material(later) == material(FINGERPRINT)


def test_material_differences_come_first() -> None:
    other = changed("torch/version", "2.16")
    other["host"] = "n2"
    assert [each.field for each in differences(FINGERPRINT, other)] == ["torch.version", "host"]


def test_an_empty_fingerprint_has_no_material() -> None:
    assert set(material({}).values()) <= {""}
    assert differences({}, {}) == []


def test_the_same_nccl_is_the_same_version_and_build() -> None:
    assert same_nccl(FINGERPRINT, FINGERPRINT) == "2.30.7"
    assert same_nccl(FINGERPRINT, changed("libraries/0/build_id", "cc")) == ""
    assert same_nccl(FINGERPRINT, changed("nccl", None)) == ""


def test_drift_is_what_is_installed_not_who_asks() -> None:
    other = changed("environment/NCCL_ALGO/value", "Tree")
    other["driver"] = "570"
    assert drift(FINGERPRINT, other) == []
    other["packages"]["numpy"] = "2.5"
    other["packages"]["einops"] = "0.8"
    assert [each.field for each in drift(FINGERPRINT, other)] == ["package.numpy", "package.einops"]
    assert packages_drift(FINGERPRINT, other) == drift(FINGERPRINT, other)
