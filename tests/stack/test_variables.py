"""What becomes of an environment variable: the table, and that it is the allow-list."""

from __future__ import annotations

import doctest

import pytest

from keepstep.stack import variables
from keepstep.stack.variable_table import ROWS
from keepstep.stack.variables import (
    IGNORED,
    READ,
    REMOVED,
    RENAMED,
    UNKNOWN,
    allowed,
    families,
    is_material,
    status_of,
    version_of,
)


@pytest.mark.parametrize(
    ("name", "backend", "torch", "word", "effective", "to"),
    [
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "nccl", "2.14.1", READ, True, ""),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "nccl", "2.15.0+cu132", REMOVED, False, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "nccl", "2.14", READ, True, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "nccl", "2.15", IGNORED, False, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "nccl-legacy", "2.15", READ, True, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ProcessGroupNCCL", "2.15", READ, True, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ProcessGroupNCCL2", "2.15", IGNORED, False, ""),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "nccl", "2.15", READ, True, ""),
        ("TORCH_NCCL_NAN_CHECK", "nccl", "2.15", RENAMED, False, "TORCH_DIST_NAN_CHECK"),
        ("NCCL_BLOCKING_WAIT", "nccl", "2.15", RENAMED, True, "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_BLOCKING_WAIT", "gloo", "2.15", IGNORED, False, ""),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "gloo", "2.15", RENAMED, True, "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_FR_DUMP_ON_TIMEOUT", "nccl", "2.14", IGNORED, False, ""),
        ("NCCL_ALGO", "cpu:gloo,cuda:nccl", "2.15", READ, True, ""),
        ("NCCL_ALGO", "gloo", "2.15", IGNORED, False, ""),
        ("NCCL_ALGO", "mpi", "2.15", UNKNOWN, None, ""),
        ("NCCL_ALGO", "nccl2", "2.12", UNKNOWN, None, ""),
        ("OMP_NUM_THREADS", "mpi", "2.15", READ, True, ""),
        ("HF_TOKEN", "nccl", "2.15", UNKNOWN, None, ""),
        ("TORCH_DIST_USE_NCCL2", "nccl", "2.13", IGNORED, False, ""),
        ("NCCL_ALGO", "nccl", "2.10", UNKNOWN, None, ""),
        ("NCCL_SHM_MEMCPY_MODE", "nccl", "2.13", READ, True, ""),
        ("NCCL_SHM_MEMCPY_MODE", "nccl", "2.14", REMOVED, False, ""),
        ("NCCL_IBVERBS_LIB", "nccl", "2.13", IGNORED, False, ""),
    ],
)
def test_what_becomes_of_a_variable(
    name: str, backend: str, torch: str, word: str, effective: bool | None, to: str
) -> None:
    found = status_of(name, backend=backend, torch=torch)
    assert (found.word, found.effective, found.to) == (word, effective, to)


def test_a_renamed_variable_is_read_until_the_version_that_renames_it() -> None:
    old, new = (f"TORCH_DISTRIBUTED_PIPELINE_PER_{word}_P2P" for word in ("DIRECTION", "EDGE"))
    assert status_of(old, backend="gloo", torch="2.14").word == READ
    found = status_of(old, backend="gloo", torch="2.15")
    assert (found.word, found.effective, found.to) == (RENAMED, False, new)
    assert status_of(new, backend="gloo", torch="2.14").word == IGNORED


def test_the_lever_decides_what_nccl_reads() -> None:
    name = "TORCH_NCCL_PROPAGATE_ERROR"
    assert status_of(name, backend="nccl", torch="2.15", use_nccl2="0").word == READ
    assert status_of(name, backend="nccl", torch="2.14", use_nccl2="1").word == IGNORED
    assert families("nccl", "2.15", "1") == families("nccl", "2.15") == ("nccl2",)


def test_a_newer_torch_is_judged_as_the_newest_that_is_known() -> None:
    found = status_of("TORCH_NCCL_AVOID_RECORD_STREAMS", backend="nccl", torch="2.17")
    assert found.word == REMOVED


def test_every_statement_has_a_source() -> None:
    for rows in ROWS.values():
        for row in rows:
            assert row.source, row.name
            assert row.last is None or row.later == "" or row.gone_source, row.name
            assert {row.instead, row.later} <= {"", *ROWS}, row.name


def test_only_the_table_is_taken_from_an_environment() -> None:
    environment = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "NCCL_SECRET_TOKEN": "y"}
    assert allowed(environment) == {"NCCL_DEBUG": "INFO"}


def test_who_a_rank_is_and_what_it_logs_is_not_material() -> None:
    assert not is_material("RANK")
    assert not is_material("NCCL_DEBUG")
    assert not is_material("TORCH_FR_DUMP_TEMP_FILE")
    assert not is_material("HF_TOKEN")
    assert is_material("NCCL_ALGO")


def test_no_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wanted a PyTorch version, such as 2\.15"):
        version_of("newest")


def test_examples() -> None:
    assert doctest.testmod(variables).failed == 0
