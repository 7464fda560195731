"""Where a dump is written and which variables count."""

from __future__ import annotations

import pytest

from keepstep.recorder import naming
from keepstep.recorder.model import Backend
from keepstep.recorder.naming import DumpPath, VariableError, effective_path

NEW, OLD = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@pytest.mark.parametrize(
    ("environment", "path", "source"),
    [
        ({"HOME": "/u"}, "/u/.cache/torch/comm_lib_trace_rank_3", ""),
        ({}, "/tmp/.cache/torch/comm_lib_trace_rank_3", ""),
        ({"HOME": "/u", "XDG_CACHE_HOME": "/c"}, "/c/torch/comm_lib_trace_rank_3", ""),
        ({"HOME": "/u", "XDG_CACHE_HOME": ""}, "/torch/comm_lib_trace_rank_3", ""),
        ({NEW: "/d/new_"}, "/d/new_3", NEW),
        ({OLD: "/d/old_"}, "/d/old_3", OLD),
        ({NEW: "/d/new_", OLD: "/d/old_"}, "/d/new_3", NEW),
        ({NEW: "", OLD: "/d/old_"}, "3", NEW),
        ({"TORCHCOMM_FR_DUMP_TEMP_FILE": "/t/"}, "/tmp/.cache/torch/comm_lib_trace_rank_3", ""),
    ],
)
def test_the_path(environment: dict[str, str], path: str, source: str) -> None:
    assert effective_path(environment, 3) == DumpPath(path, source, dynamic=False)


def test_torchcomms_has_its_own_variable_and_the_same_default() -> None:
    default = effective_path({}, 0)
    assert effective_path({}, 0, Backend.TORCHCOMMS) == default
    environment = {"TORCHCOMM_FR_DUMP_TEMP_FILE": "/t/", NEW: "/d/"}
    assert effective_path(environment, 0, Backend.TORCHCOMMS).path == "/t/0"


@pytest.mark.parametrize(("text", "dynamic"), [("1", True), ("TRUE", True), ("n", False)])
def test_a_dynamic_name(text: str, dynamic: bool) -> None:
    assert effective_path({"TORCH_FR_DUMP_DYNAMIC_FILE_NAME": text}, 0).dynamic is dynamic


def test_a_value_that_pytorch_refuses() -> None:
    with pytest.raises(VariableError, match=r"NAME='maybe': 1 or 0 was wanted"):
        effective_path({"TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "maybe"}, 0)
    losing = {"TORCH_FR_BUFFER_SIZE": "10", "TORCH_NCCL_TRACE_BUFFER_SIZE": "many"}
    with pytest.raises(VariableError, match="whole number"):
        naming.number(losing, naming.BUFFER_SIZE, Backend.NCCL2)


def test_the_same_setting_has_other_names_in_other_recorders() -> None:
    only_new = {"TORCH_FR_DUMP_ON_TIMEOUT": "0"}
    assert not naming.flag(only_new, naming.DUMP_ON_TIMEOUT, Backend.NCCL2)
    assert naming.flag(only_new, naming.DUMP_ON_TIMEOUT, Backend.NCCL_LEGACY)
    wait = {"TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "5"}
    assert naming.number(wait, naming.WAIT_FOR_DUMP, Backend.NCCL2) == 5
    assert naming.number(wait, naming.WAIT_BEFORE_ABORT, Backend.NCCL2) == 15_000


@pytest.mark.parametrize(
    ("name", "ignored_by"),
    [
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", {Backend.NCCL2, Backend.GLOO}),
        ("TORCH_NCCL_DESYNC_DEBUG", {Backend.NCCL2, Backend.GLOO}),
        ("TORCH_NCCL_BLOCKING_WAIT", {Backend.GLOO}),
        ("TORCH_FR_DUMP_ON_TIMEOUT", {Backend.NCCL_LEGACY, Backend.GLOO}),
        ("TORCH_FR_BUFFER_SIZE", set()),
        ("TORCH_GLOO_LAZY_INIT", {Backend.NCCL_LEGACY, Backend.NCCL2}),
        ("TORCH_NCCL2_RECONFIGURE_SHRINK_GROW", {Backend.NCCL_LEGACY, Backend.GLOO}),
    ],
)
def test_ignored_variables(name: str, ignored_by: set[Backend]) -> None:
    backends = (Backend.NCCL_LEGACY, Backend.NCCL2, Backend.GLOO)
    assert {b for b in backends if naming.ignored({name: "1"}, b)} == ignored_by


def test_a_variable_that_exists_nowhere() -> None:
    environment = {"TORCH_NCCL_FLIGHT_RECORDER_ENABLED": "1", "TORCH_FR_BUFFER_SIZE": "1"}
    assert naming.unknown(environment) == ("TORCH_NCCL_FLIGHT_RECORDER_ENABLED",)
