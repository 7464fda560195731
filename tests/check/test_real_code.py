"""Over real code: what is found is there, and nothing that works is said to break."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.check.finding import Finding, Severity
from keepstep.check.look import look_at_code
from tests.check.job import question

# Files of torch's own wheel that call torch.distributed; the last has 9,000 lines.
FILES = (
    *("distributed/run.py", "distributed/launch.py", "distributed/device_mesh.py"),
    *("distributed/nn/functional.py", "distributed/optim/zero_redundancy_optimizer.py"),
    *("distributed/checkpoint/_async_process_executor.py", "distributed/pipelining/stage.py"),
    *("distributed/checkpoint/state_dict.py", "distributed/fsdp/_runtime_utils.py"),
    *("nn/parallel/distributed.py", "testing/_internal/common_distributed.py"),
    *("testing/_internal/common_fsdp.py", "testing/_internal/dist_utils.py"),
    *("testing/_internal/distributed/_tensor/common_dtensor.py",),
    "testing/_internal/distributed/distributed_test.py",
)


def _breaks(path: Path) -> list[Finding]:
    report, _ = look_at_code(question(path))
    return [each for each in report.findings if each.severity is Severity.BREAKS]


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_torch_is_said_to_break(name: str) -> None:
    torch = pytest.importorskip("torch")
    path = Path(torch.__file__).parent / name
    if not path.exists():
        pytest.skip(f"this wheel has no {name}")
    assert not _breaks(path)


def test_of_our_jobs_only_the_one_that_must_be_refused_breaks(checkout: Path) -> None:
    jobs = sorted((checkout / "jobs").glob("*.py"))
    assert jobs
    codes = {path.name: {each.code for each in _breaks(path)} for path in jobs}
    assert codes.pop("many_devices.py", {"KS104"}) == {"KS104"}
    assert not any(codes.values())
