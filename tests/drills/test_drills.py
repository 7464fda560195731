"""The drills for real, on PyTorch 2.15 with gloo, and what is left when one is cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from keepstep.canary.verdict import Verdict
from keepstep.drills import hang as hang_module
from keepstep.drills import rollback as rollback_module
from keepstep.drills.hang import hang
from keepstep.drills.job_runs import SavingJob, run_job
from keepstep.drills.limits import Limits
from keepstep.drills.record import DrillRecord
from keepstep.drills.replace import replace
from keepstep.drills.restore import restore
from keepstep.drills.rollback import rollback
from keepstep.drills.test_loads import differing, load_on
from keepstep.stack.create import create
from keepstep.stack.named import Stack
from tests.running import ROOT, is_alive

pytestmark = pytest.mark.timeout(300)

HERE = Stack(name="here", python=sys.executable, torch=torch.__version__)
QUICK = Limits(operation_s=2.0)
DATA_PARALLEL = SavingJob(ROOT / "jobs" / "data_parallel.py")
SHARDED = SavingJob(ROOT / "jobs" / "sharded.py")


def proofs(record: DrillRecord) -> dict[str, Verdict]:
    return {proof.what: proof.verdict for proof in record.proofs}


def test_a_rank_that_is_held_is_named(tmp_path: Path) -> None:
    record = hang(HERE, "gloo", folder=tmp_path, limits=QUICK, supervise=False)
    assert record.verdict is Verdict.PASS, record.reason
    assert record.name == "hang/here/gloo"
    assert proofs(record)["the diagnosis names the held rank"] is Verdict.PASS
    asked = [each for each in record.facts["artifacts"] if each["how"] == "asked"]
    assert [each["operations"] for each in asked] == [4, 3, 4]
    assert all(each["size"] and each["owner"] and each["file_system"] for each in asked)
    assert "in _hold" in (tmp_path / "stack-1.txt").read_text()
    assert record.fingerprints["here"]["built"] == "ProcessGroupGloo"
    DrillRecord.model_validate_json(record.model_dump_json())


def test_a_recorder_that_is_off_fails_the_drill(tmp_path: Path) -> None:
    record = hang(
        HERE,
        "gloo",
        folder=tmp_path,
        limits=QUICK,
        variables={"TORCH_FR_BUFFER_SIZE": "0"},
        supervise=False,
    )
    assert record.verdict is Verdict.FAIL
    assert "dump, when asked" in record.reason
    assert "debug server" in record.next


def test_a_hang_that_never_began_is_inconclusive(tmp_path: Path) -> None:
    limits = Limits(start_s=0.2)
    record = hang(HERE, "gloo", folder=tmp_path, limits=limits, supervise=False)
    assert record.verdict is Verdict.INCONCLUSIVE
    assert "not proven that rank 1 was held" in record.reason


def test_a_backend_that_needs_a_gpu_is_not_run_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_module, "gpus", lambda: ())
    record = hang(HERE, "nccl", folder=tmp_path)
    assert record.verdict is Verdict.INCONCLUSIVE
    assert set(proofs(record).values()) == {Verdict.NOT_RUN}
    assert record.facts["implementation"] == "nccl2"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_rank_that_is_killed_is_replaced(tmp_path: Path) -> None:
    record = replace(HERE, folder=tmp_path)
    assert record.verdict is Verdict.PASS, record.reason
    assert 0 < record.facts["next_step_after_s"] < 10


@pytest.mark.slow
def test_keepstep_run_names_a_rank_that_hangs(tmp_path: Path) -> None:
    record = hang(HERE, "gloo", folder=tmp_path, limits=QUICK)
    assert proofs(record)["keepstep run: its incident names the rank that hangs"] is Verdict.PASS


def test_a_lever_on_one_rank_only_is_caught_and_the_rest_waits_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_module, "gpus", lambda: ())
    record = rollback(
        HERE, HERE, job=DATA_PARALLEL, folder=tmp_path, levers=["variable"], owner="ada"
    )
    found = proofs(record)
    assert found["TORCH_DIST_USE_NCCL2=0 was pulled on rank 0 only"] is Verdict.PASS
    caught = "TORCH_DIST_USE_NCCL2=0 on rank 0 only is caught before the first collective"
    assert found[caught] is Verdict.PASS
    resolved = "TORCH_DIST_USE_NCCL2=0: every rank resolves nccl to the old backend"
    assert found[resolved] is Verdict.PASS
    assert found["TORCH_DIST_USE_NCCL2=0: every rank builds the old class"] is Verdict.NOT_RUN
    assert record.verdict is Verdict.INCONCLUSIVE
    assert record.facts["debts"][0]["owner"] == "ada"


def test_a_job_gets_the_arguments_of_the_plan_and_then_those_of_the_drill(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import runpy, sys\n"
        "assert sys.argv.pop(1) == 'config.yaml', sys.argv\n"
        f"runpy.run_path({str(SHARDED.script)!r}, run_name='__main__')\n"
    )
    words = ("config.yaml", "--steps", "900", "--seed", "{seed}", "--backend", "{backend}")
    job = SavingJob(script, words)
    asked = ["--steps", "1", "--seed", "5"]
    run = run_job(HERE, job, asked, label="x", folder=tmp_path / "run", limit_s=60)
    assert not run.problem
    assert [len(losses) for losses in run.losses] == [1, 1]
    filled = SavingJob(script, ("--save={checkpoint}",)).words("gloo", tmp_path, ["--seed", "5"])
    assert filled == [f"--save={tmp_path}/checkpoint", "--seed", "5", "--backend", "gloo"]


def test_a_checkpoint_of_another_run_has_other_digests(tmp_path: Path) -> None:
    places = [tmp_path / f"seed-{seed}" for seed in (0, 1)]
    for seed, place in enumerate(places):
        run = run_job(
            HERE,
            DATA_PARALLEL,
            ["--steps", "1", "--seed", str(seed), "--checkpoint", str(place)],
            label=place.name,
            folder=tmp_path / f"run-{seed}",
            limit_s=60,
        )
        assert not run.problem
        assert len(run.losses[0]) == 1
    loads = [
        load_on(HERE, place, label=place.name, folder=tmp_path, limit_s=60) for place in places
    ]
    assert [load.verdict for load in loads] == ["pass", "pass"]
    assert loads[0].digests.keys() == loads[1].digests.keys()
    assert differing(*loads)


def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from keepstep.drills.hang import hang; "
        "from keepstep.stack.named import Stack; "
        "hang(Stack(name='x', python=sys.executable, torch='2.15.0'), 'gloo', "
        "folder=Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    pids = _pids_when_held(tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert len(pids) == 3
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_killed_drill_takes_its_ranks_along(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from keepstep.drills.hang import hang; "
        "from keepstep.stack.named import Stack; "
        "hang(Stack(name='x', python=sys.executable, torch='2.15.0'), 'gloo', "
        "folder=Path(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    pids = _pids_when_held(tmp_path)
    process.kill()
    process.wait(30)
    until = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)  # they are no children of ours: their end cannot be waited for
    assert not [pid for pid in pids if is_alive(pid)]


def _pids_when_held(folder: Path) -> list[int]:
    """Wait until the rank is held; return the processes of all ranks."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        text = "".join(path.read_text() for path in folder.glob("progress-*.jsonl"))
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        if any(line["fact"] == "held" for line in lines):
            return [line["pid"] for line in lines if line["fact"] == "started"]
        time.sleep(0.05)  # another process writes the file
    raise AssertionError(f"no rank was held; {os.listdir(folder)}")


@pytest.mark.old_torch
@pytest.mark.timeout(900)
def test_each_stack_reads_what_it_must(tmp_path: Path) -> None:
    old, new = create("2.14.1", torch="2.14.1"), create("2.15.0", torch="2.15.0")
    record = restore(old, new, job=SHARDED, folder=tmp_path)
    assert record.verdict is Verdict.PASS, record.reason
    refused = next(row for row in record.facts["directions"] if row["verdict"] == "fail")
    assert (refused["checkpoint"], refused["loaded_by"]) == ("post-upgrade", "2.14.1")
    assert "too many values to unpack (expected 5)" in refused["error"]
    assert all(row["largest_difference"] is not None for row in record.facts["resumed"])


@pytest.mark.old_torch
@pytest.mark.timeout(900)
def test_the_old_stack_is_a_way_back(tmp_path: Path) -> None:
    old, new = create("2.14.1", torch="2.14.1"), create("2.15.0", torch="2.15.0")
    record = rollback(old, new, job=DATA_PARALLEL, folder=tmp_path, levers=["stack"])
    assert record.verdict is Verdict.PASS, record.reason
    assert record.facts["stack_hang"]["verdict"] == "pass"
