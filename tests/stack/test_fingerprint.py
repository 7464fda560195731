"""What is read of a running process: libraries, groups, variables, machine; and no secret."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keepstep.stack import fingerprint as module
from keepstep.stack import machine
from keepstep.stack.carried import fingerprint_program
from keepstep.stack.exposed import exposed, on_path
from keepstep.stack.libraries import build_id, duplicates, loaded_libraries, nccl_version

SECRET = "hunter2-never-shown"

# One process is a whole job; every fact is printed. Run by this environment's torch.
JOB = """
import datetime, json, sys
import torch, torch.distributed as dist
from keepstep.stack.fingerprint import fingerprint
from keepstep.stack.groups import watch
watch()
watch()
dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://" + sys.argv[1])
dist.new_group([0])
gone = dist.new_group([0], datetime.timedelta(seconds=77), "cpu:gloo")
dist.destroy_process_group(gone)
print(json.dumps(fingerprint()))
assert not torch.cuda.is_initialized()
"""


def elf(path: Path, identity: bytes) -> str:
    """Write a file that is an ELF as far as its build id goes: behind another note."""
    other = struct.pack("<III", 4, 3, 1) + b"GNU\0" + b"abc\0"
    note = struct.pack("<III", 4, len(identity), 3) + b"GNU\0" + identity
    header = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q", 64)
    header = header.ljust(54, b"\0") + struct.pack("<HH", 56, 2)
    table = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 0, 0, 0)
    table += struct.pack("<IIQQQQQQ", 4, 0, 176, 0, 0, len(other + note), 0, 4)
    path.write_bytes(header.ljust(64, b"\0") + table + other + note)
    return str(path)


def mapped(tmp_path: Path, *paths: str) -> str:
    maps = tmp_path / "maps"
    lines = [f"7f00-7f01 r-xp 00000000 fd:00 1    {path}" for path in (*paths, *paths)]
    maps.write_text("\n".join([*lines, "7ffe-7fff rw-p 00000000 00:00 0   [stack]", ""]))
    return str(maps)


def test_libraries_are_those_that_are_mapped_each_once(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    nccl = elf(tmp_path / "a b" / "libnccl.so.2", bytes(range(20)))
    plain = tmp_path / "libtorch.so"
    plain.write_text("not an ELF")
    paths = [nccl, str(plain), "/lib/libm.so.6", str(tmp_path / "libcudart.so.13")]
    found = loaded_libraries(mapped(tmp_path, *paths))
    assert [(each["name"], each["build_id"]) for each in found] == [
        ("libcudart.so.13", None),
        ("libnccl.so.2", bytes(range(20)).hex()),
        ("libtorch.so", None),
    ]


def test_a_build_id_is_what_the_tools_say(tmp_path: Path) -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in lines if line.endswith("libc.so.6"))
    assert len(build_id(libc) or "") == 40
    assert build_id(elf(tmp_path / "x.so", b"\1\2")) == "0102"
    for content in (b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(60)):
        (tmp_path / "y.so").write_bytes(content)
        assert build_id(str(tmp_path / "y.so")) is None


def test_two_nccls_are_a_finding(tmp_path: Path) -> None:
    for name in ("cu12", "cu13", "same"):
        (tmp_path / name).mkdir()
    paths = [
        elf(tmp_path / "cu12" / "libnccl.so.2", b"\1"),
        elf(tmp_path / "cu13" / "libnccl.so.2", b"\2"),
        elf(tmp_path / "cu12" / "libcudart-0a1b2c3d.so.13.0.96", b"\3"),
        elf(tmp_path / "same" / "libcudart.so.13", b"\3"),
        elf(tmp_path / "cu12" / "libcublas.so.13", b"\4"),
        elf(tmp_path / "cu12" / "libcublasLt.so.13", b"\5"),
    ]
    found = duplicates(loaded_libraries(mapped(tmp_path, *paths)))
    assert [(each["name"], each["different"]) for each in found] == [
        ("libcudart", False),
        ("libnccl", True),
    ]
    assert found[1]["paths"] == paths[:2]


def test_without_an_nccl_there_is_none() -> None:
    assert nccl_version([]) is None


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The fingerprint of a real process with three groups, one of them gone."""
    folder = tmp_path_factory.mktemp("job")
    variables = {**os.environ, "MY_API_TOKEN": SECRET, "NCCL_SECRET_KEY": SECRET}
    variables |= {"TORCH_NCCL_PROPAGATE_ERROR": "1", "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", JOB, str(folder / "store")]
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_real_process_says_what_it_runs_on(job: dict[str, Any]) -> None:
    assert job["torch"]["version"].startswith("2.15")
    assert len(job["torch"]["git"]) == 40
    assert job["packages"]["torch"] == "2.15.0"
    names = {each["name"] for each in job["libraries"]}
    assert {"libtorch_cpu.so", "libc10.so"} <= names
    assert all(each["build_id"] for each in job["libraries"] if "torch" in each["name"])
    assert job["duplicates"] == []
    assert job["backend_impls"]["gloo"] == "ProcessGroupGloo"
    assert job["backend_impls"]["nccl"] == "ProcessGroupNCCL2"
    assert job["backend_impls"]["nccl-legacy"] == "ProcessGroupNCCL"
    assert job["checkpoint_format"]["form"] == "D"
    assert job["limits"]["cpus_allowed"] == len(os.sched_getaffinity(0))
    for name, value in job.items():
        if value is None:
            assert job["reasons"][name], name


def test_groups_are_what_was_asked_for_and_what_was_built(job: dict[str, Any]) -> None:
    by_name = {each["name"]: each for each in job["groups"]}
    world, same, gone = (by_name[name] for name in ("0", "1", "2"))
    assert (world["asked"], world["ranks"], world["timeout_s"]) == ("gloo", [0], 1800.0)
    assert world["classes"]["cpu"] == "ProcessGroupGloo"
    assert same["asked"] == ""
    assert (gone["asked"], gone["ranks"], gone["timeout_s"]) == ("cpu:gloo", [0], 77.0)
    assert gone["device"] is None
    assert len(job["groups"]) == 3


def test_a_variable_is_judged_for_the_class_that_was_built(job: dict[str, Any]) -> None:
    environment = job["environment"]
    assert environment["TORCH_NCCL_PROPAGATE_ERROR"]["status"] == "ignored"
    assert environment["OMP_NUM_THREADS"] == {"value": "1", "status": "read", "to": "", "note": ""}
    assert not {"MY_API_TOKEN", "NCCL_SECRET_KEY"} & environment.keys()


def test_nothing_that_cannot_be_read_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    for name in ("loaded_libraries", "limits", "driver_and_gpus", "allowed", "_packages"):
        monkeypatch.setattr(module, name, broken)
    monkeypatch.setattr("keepstep.stack.groups.groups", broken)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = module.fingerprint()
    assert found["groups"] == found["libraries"] == found["gpus"] == []
    for name in ("torch", "environment", "limits", "driver", "packages"):
        assert found[name] is None
        assert found["reasons"][name]
    assert json.dumps(found)


def test_without_a_driver_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: no such library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    with pytest.raises(machine.NoDriverError, match=r"no NVML .*and no "):
        machine.driver_and_gpus()
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    (tmp_path / "gpus" / "0000:1b:00.0").mkdir(parents=True)
    information = tmp_path / "gpus" / "0000:1b:00.0" / "information"
    information.write_text("Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-12\n")
    driver, gpus, links = machine.driver_and_gpus()
    assert (driver, links) == ("580.95.05", {})
    assert [(gpu["name"], gpu["uuid"], gpu["pci"]) for gpu in gpus] == [
        ("NVIDIA H200", "GPU-12", "0000:1b:00.0")
    ]


def test_limits_of_both_kinds_of_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "job").mkdir()
    said: dict[str, list[str]] = {
        "memory.max": ["max", "4096"],
        "cpu.max": ["150000 100000", "max 100000"],
    }
    monkeypatch.setattr(machine, "_cgroup", lambda name, _: said.get(name, []))
    assert machine.limits()["memory"] == 4096
    assert machine.limits()["cpus"] == 1.5
    said.clear()
    said["memory.limit_in_bytes"] = [str(1 << 62), "8192"]
    said["cpu.cfs_quota_us"], said["cpu.cfs_period_us"] = ["-1", "200000"], ["100000", "100000"]
    assert machine.limits()["memory"] == 8192
    assert machine.limits()["cpus"] == 2.0


def test_the_code_that_travels_on_a_command_line_answers_the_same() -> None:
    bare = [sys.executable, "-I", "-c", fingerprint_program(), "--without-torch"]
    done = subprocess.run(bare, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    here = module.without_torch()
    assert json.loads(done.stdout)["packages"] == here["packages"]
    assert len(fingerprint_program()) < 100_000  # Linux takes 131,072 bytes an argument


def test_what_lies_in_the_working_directory_is_not_installed(tmp_path: Path) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    module = [sys.executable, "-m", "keepstep.stack.fingerprint", "--without-torch"]
    done = subprocess.run(module, capture_output=True, text=True, cwd=tmp_path)
    packages = json.loads(done.stdout)["packages"]
    assert "pytest" in packages
    assert "mine" not in packages


def test_a_foreign_interpreter_gets_this_package_and_no_other(cache: Path) -> None:
    folder = exposed()
    assert folder.is_relative_to(cache)
    assert [path.name for path in folder.iterdir()] == ["keepstep"]
    assert exposed() == folder
    code = "import keepstep.stack.fingerprint, importlib.util as u; print(u.find_spec('pydantic'))"
    bare = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=on_path({"PYTHONPATH": "/nowhere"}),
        capture_output=True,
        text=True,
    )
    assert bare.stdout.strip() == "None", bare.stderr
    assert on_path({})["PYTHONPATH"] == str(folder)
    assert on_path({"PYTHONPATH": "/a"})["PYTHONPATH"] == f"{folder}{os.pathsep}/a"
