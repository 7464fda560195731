"""Would a dump survive, and did it arrive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepstep.recorder import arrival, disk
from keepstep.recorder.delivery import (
    Arrived,
    Due,
    Problem,
    Reason,
    Verdict,
    check_delivery,
    check_recorder,
)
from keepstep.recorder.disk import Disk, mount_of
from keepstep.recorder.model import Backend, Finding, Severity

GOOD_DISK = Disk(exists=True, writable=True, free_bytes=1 << 40, file_system="ext4")
PREFIX = "TORCH_FR_DUMP_TEMP_FILE"
GOOD = {PREFIX: "/shared/job1/rank_"}


def problems(environment: dict[str, str] | None = None, **changes: Any) -> dict[str, Problem]:
    options: dict[str, Any] = {
        "ranks_by_host": {"a": (0, 1)},
        "backend": Backend.NCCL_LEGACY,
        "disks": {"a": GOOD_DISK},
        "grace_s": 60,
    } | changes
    found = check_recorder(GOOD if environment is None else environment, **options)
    return {problem.code: problem for problem in found}


def test_nothing_is_wrong_with_a_good_set_up() -> None:
    assert problems() == {}


@pytest.mark.parametrize(
    ("variables", "code", "mend"),
    [
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "recorder-off", "set TORCH_FR_BUFFER_SIZE=2000"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "recorder-off", "set TORCH_FR_BUFFER_SIZE=2000"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, "alias-only", "set TORCH_FR_BUFFER_SIZE=9"),
        (
            {"TORCH_FR_BUFFER_SIZE": "5", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"},
            "alias-ignored",
            "unset TORCH_NCCL_TRACE_BUFFER_SIZE",
        ),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "dump-off", "set TORCH_NCCL_DUMP_ON_TIMEOUT=1"),
        (
            {"TORCH_FR_DUMP_ON_TIMEOUT": "1"},
            "ignored-variable",
            "set TORCH_NCCL_DUMP_ON_TIMEOUT instead",
        ),
        ({"TORCH_NCCL_FLIGHT_RECORDER_ENABLED": "1"}, "unknown-variable", "unset it"),
        ({"TORCH_FR_BUFFER_SIZE": "lots"}, "invalid-variable", "correct or unset it"),
        ({PREFIX: "dumps/rank_"}, "relative-path", f"set {PREFIX} to an absolute prefix"),
        ({"TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1"}, "dynamic-name", "unset"),
        ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000"}, "short-grace", "wait 180 s"),
    ],
)
def test_variables_that_cost_a_dump(variables: dict[str, str], code: str, mend: str) -> None:
    found = problems({**GOOD, **variables})
    assert code in found
    assert mend in found[code].mend


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"exists": False}, "no-directory"),
        ({"writable": False}, "not-writable"),
        ({"file_system": "overlay"}, "lost-with-container"),
        ({"file_system": "tmpfs"}, "lost-with-container"),
        ({"free_bytes": 5_999_999}, "no-space"),
        ({"prefix_is_directory": True}, "prefix-is-directory"),
    ],
)
def test_disks_that_cost_a_dump(change: dict[str, Any], code: str) -> None:
    found = problems(disks={"a": replace(GOOD_DISK, **change)})
    assert set(found) == {code}
    assert found[code].host == "a"


def test_enough_space_is_enough() -> None:
    assert problems(disks={"a": replace(GOOD_DISK, free_bytes=6_000_000)}) == {}


def test_the_default_directory_need_not_exist() -> None:
    assert problems({"HOME": "/u"}, disks={"a": replace(GOOD_DISK, exists=False)}) == {}


def test_a_host_about_which_nothing_is_known_is_no_pass() -> None:
    found = problems(disks={})
    assert found["not-observed"].severity is Severity.ERROR


def test_who_writes_by_itself() -> None:
    assert problems(backend=Backend.NCCL2)["silent-ranks"].severity is Severity.WARNING
    assert problems(backend=Backend.GLOO)["silent-ranks"].severity is Severity.ERROR
    assert problems(backend=Backend.NCCL2, silent_ranks_are_asked=True) == {}


def test_one_path_for_two() -> None:
    assert "path-collision" in problems(taken_prefixes=["/shared/job1/rank_"])
    assert "path-collision" in problems(other_backends=[Backend.GLOO])
    assert problems(other_backends=[Backend.TORCHCOMMS]) == {}
    assert "path-collision" in problems({}, other_backends=[Backend.TORCHCOMMS])


def test_the_answer_does_not_depend_on_the_order_of_hosts() -> None:
    disks = {host: replace(GOOD_DISK, writable=False) for host in "abc"}
    hosts = {"a": (0,), "b": (1,), "c": (2,)}
    backward = dict(reversed(hosts.items()))
    options: dict[str, Any] = {"backend": Backend.NCCL2, "disks": disks}
    assert check_recorder(GOOD, hosts, **options) == check_recorder(GOOD, backward, **options)


# Mounts

MOUNTS = r"""
22 1 0:21 / / rw - overlay overlay rw,lowerdir=/l
30 22 0:30 / /dev/shm rw - tmpfs shm rw
31 22 8:1 / /data rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw
32 31 0:40 / /data/with\040space rw - nfs4 server:/x rw
33 22 0:41 / /data rw - xfs /dev/sdb rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/users/u/.cache", ("/", "overlay")),
        ("/dev/shm", ("/dev/shm", "tmpfs")),
        ("/dev/shmx", ("/", "overlay")),
        ("/data/a/b", ("/data", "xfs")),
        ("/data/with space/a", ("/data/with space", "nfs4")),
    ],
)
def test_the_file_system_of_a_path(path: str, expected: tuple[str, str]) -> None:
    assert mount_of(MOUNTS, path) == expected


def test_a_path_below_no_mount() -> None:
    assert mount_of("", "/data") == ("", "")


def test_a_real_directory_is_observed(tmp_path: Path) -> None:
    seen = disk.observe(str(tmp_path / "new" / "rank_"))
    assert (seen.exists, seen.writable, seen.prefix_is_directory) == (False, True, False)
    assert seen.free_bytes > 0
    assert seen.file_system
    assert disk.observe(str(tmp_path)).prefix_is_directory


# After the job

SEEN = Arrived(size=900, modified_s=150.0, later_size=900, later_modified_s=150.0)
DUE = Due(rank=0, path="/d/rank_0", backend=Backend.NCCL_LEGACY)


def reason(seen: Arrived | None, due: Due = DUE) -> Reason | None:
    arrived = {} if seen is None else {due.path: seen}
    (item,) = check_delivery([due], arrived, started_s=100.0).items
    return item.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"modified_s": 99.0, "later_modified_s": 99.0}, Reason.STALE),
        ({"later_size": 1000}, Reason.GROWING),
        ({"later_modified_s": 151.0}, Reason.GROWING),
        ({"later_size": None}, Reason.LOST),
        ({"readable": False}, Reason.UNREADABLE),
        ({"size": 0, "later_size": 0}, Reason.TRUNCATED),
        ({"findings": ("truncated",)}, Reason.TRUNCATED),
        ({"findings": ("nothing-recorded",)}, Reason.WRONG_RECORDER),
        ({"findings": ("hostile",)}, Reason.UNKNOWN_FORMAT),
        ({"findings": ("wrong-rank",)}, Reason.OVERWRITTEN),
        ({"findings": ("group-ranks-unknown",)}, None),
    ],
)
def test_what_arrived(changes: dict[str, Any], expected: Reason | None) -> None:
    assert reason(replace(SEEN, **changes)) is expected


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (DUE, Reason.NOT_REACHED),
        (replace(DUE, backend=Backend.NCCL2), Reason.NEVER_ATTEMPTED),
        (replace(DUE, backend=Backend.GLOO), Reason.NEVER_ATTEMPTED),
        (replace(DUE, excuse=Reason.DISABLED), Reason.DISABLED),
    ],
)
def test_what_did_not_arrive_has_a_reason(due: Due, expected: Reason) -> None:
    assert reason(None, due) is expected


def test_two_dumps_at_one_path() -> None:
    both = [DUE, replace(DUE, backend=Backend.GLOO)]
    delivery = check_delivery(both, {DUE.path: SEEN}, started_s=100)
    assert [item.reason for item in delivery.items] == [Reason.PATH_COLLISION] * 2


def test_verdicts() -> None:
    other = replace(DUE, rank=1, path="/d/rank_1")
    complete = check_delivery([other, DUE], {DUE.path: SEEN, other.path: SEEN}, started_s=100)
    assert (complete.verdict, complete.missing) == (Verdict.COMPLETE, ())
    assert [item.due.rank for item in complete.items] == [0, 1]
    half = check_delivery([DUE, other], {DUE.path: SEEN, "/d/rank_7": SEEN}, started_s=100)
    assert half.verdict is Verdict.INCOMPLETE
    assert [item.due.rank for item in half.missing] == [1]
    assert half.unexpected == ("/d/rank_7",)


@pytest.mark.parametrize("arrived", [{}, {"/d/rank_0": SEEN}])
def test_nothing_due_is_never_a_pass(arrived: dict[str, Arrived]) -> None:
    assert check_delivery([], arrived, started_s=0).verdict is Verdict.INCONCLUSIVE


def test_files_are_observed_twice(tmp_path: Path) -> None:
    steady, growing, going = (tmp_path / f"rank_{n}" for n in range(3))
    for path in (steady, growing, going):
        path.write_bytes(b"abc")

    def meanwhile(seconds: float) -> None:
        assert seconds == 2
        growing.write_bytes(b"abcdef")
        going.unlink()

    findings = [Finding("truncated", str(steady), "")]
    paths = [str(tmp_path / f"rank_{n}") for n in range(4)]
    seen = arrival.observe(paths, findings, apart_s=2, sleep=meanwhile)
    assert [seen[path].later_size for path in paths[:3]] == [3, 6, None]
    assert seen[str(steady)].findings == ("truncated",)
    assert paths[3] not in seen
