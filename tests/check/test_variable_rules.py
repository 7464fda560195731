"""Variables in code, in the launch line and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.check.finding import Severity
from tests.check.job import END, IMPORTS, READY, codes, found, look_at

GONE = "TORCH_NCCL_AVOID_RECORD_STREAMS"
LEGACY_ONLY = "TORCH_NCCL_PROPAGATE_ERROR"


def test_a_variable_that_the_new_backend_drops_is_a_change(tmp_path: Path) -> None:
    report = look_at(tmp_path, IMPORTS, READY, f'os.environ["{LEGACY_ONLY}"] = "1"')
    (seen,) = found(report, "KS501")
    assert seen.severity is Severity.CHANGES
    assert seen.line
    assert "2.14 reads it" in seen.text


def test_the_same_variable_on_the_same_backend_is_none(tmp_path: Path) -> None:
    line = f"TORCH_DIST_USE_NCCL2=0 {LEGACY_ONLY}=1 torchrun train.py"
    assert "KS501" not in codes(look_at(tmp_path, IMPORTS, READY, launch=line))


@pytest.mark.parametrize(
    "line", [f"{GONE}=1 torchrun train.py", f"srun --export={GONE}=1 train.py"]
)
def test_the_launch_line_counts(line: str, tmp_path: Path) -> None:
    (seen,) = found(look_at(tmp_path, IMPORTS, READY, launch=line), "KS501")
    assert "in the launch line" in seen.text
    assert "194701" in seen.why


def test_the_environment_counts_where_the_table_knows_the_name(tmp_path: Path) -> None:
    environment = {LEGACY_ONLY: "1", "MY_TOKEN": "s3cret", "TORCH_SECRET": "s3cret"}
    report = look_at(tmp_path, IMPORTS, READY, END, environment=environment)
    assert [each.code for each in report.findings] == ["KS501"]
    assert "s3cret" not in repr(report)


def test_a_new_name_is_told(tmp_path: Path) -> None:
    line = "TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P=1 torchrun train.py"
    (seen,) = found(look_at(tmp_path, IMPORTS, READY, launch=line), "KS502")
    assert "TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P" in seen.text


def test_an_unknown_name_of_ours_is_a_note_and_others_are_none(tmp_path: Path) -> None:
    line = "TORCH_NCCL_BLOCKINGWAIT=1 WANDB_MODE=offline torchrun train.py"
    (seen,) = found(look_at(tmp_path, IMPORTS, READY, launch=line), "KS503")
    assert "TORCH_NCCL_BLOCKINGWAIT" in seen.text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("TORCH_FR_BUFFER_SIZE=0", "KS506"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=0", "KS506"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "KS508"),
        ("USE_LIBUV=0", "KS507"),
    ],
)
def test_levers_of_a_hang(line: str, code: str, tmp_path: Path) -> None:
    assert code in codes(look_at(tmp_path, IMPORTS, READY, launch=f"{line} torchrun train.py"))
    kept = line.replace("=0", "=1")
    assert code not in codes(look_at(tmp_path, IMPORTS, READY, launch=f"{kept} torchrun train.py"))
