"""What the probe records of real runs with two ranks, and what it makes of planted faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from keepstep.canary.record import RankRecord
from keepstep.stack.create import create
from tests.probe.probing import ROOT, Ended, probed, record, run, variables
from tests.probe.small_job import BATCH, OWN_SLEEP, STEPS, WIDTH

# Three runs of two ranks: some 20 s on two idle cores, minutes on a busy machine.
pytestmark = pytest.mark.timeout(400)
SMALL = str(ROOT / "tests" / "probe" / "small_job.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run under the probe."""

    ended: list[Ended]
    ranks: list[RankRecord]
    sleeps: list[list[float]]  # seconds that each rank was asked to sleep; none of one that crashed


def run_small(folder: Path, *options: str) -> Run:
    """Run the small job on two ranks."""
    ended = run(probed(folder, *options, SMALL, str(folder)), world=2)
    files = [folder / f"sleeps-{rank}.json" for rank in range(2)]
    return Run(
        ended=ended,
        ranks=[record(folder, rank) for rank in range(2)],
        sleeps=[json.loads(file.read_text()) for file in files if file.exists()],
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """The job without the probe."""
    return run([sys.executable, SMALL, str(tmp_path_factory.mktemp("plain"))], world=2)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The job as it is."""
    return run_small(tmp_path_factory.mktemp("seen"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The job with a wrong gradient on rank 1, a warning and a slowdown."""
    options = ("--slow=1.5", "--no-sweep", "--plant=gradient@2:1", "--plant=warn:beware of this")
    return run_small(tmp_path_factory.mktemp("planted"), *options)


def test_output_and_random_numbers_are_those_of_the_job(plain: list[Ended], seen: Run) -> None:
    assert [each.code for each in seen.ended] == [each.code for each in plain] == [0, 0]
    assert [each.output for each in seen.ended] == [each.output for each in plain]
    assert [steady(each.errors) for each in seen.ended] == [steady(each.errors) for each in plain]


def steady(text: str) -> str:
    """The text without addresses, times and process numbers."""
    return re.sub(r"0x[0-9a-f]+|\d\d:\d\d:\d\d\S* \d+|\d+\.\d+", "N", text)


def test_the_record_is_whole(seen: Run) -> None:
    for rank, found in enumerate(seen.ranks):
        assert (found.rank, found.world_size, found.end, found.exit_code) == (
            rank,
            2,
            "complete",
            0,
        )
        assert found.script_sha256
        assert found.seed == 3
        assert found.model_parameters == WIDTH * WIDTH + WIDTH + WIDTH + 1
        assert found.tokens == STEPS * 2 * BATCH * WIDTH
        assert min(found.import_s or 0, found.init_s or 0, found.first_collective_s or 0) > 0
        assert found.shutdown_s is not None
        assert 0 < (found.memory_before_first_step or 0) <= (found.memory_peak or 0)
        assert found.left_behind == ()
        assert found.artifacts == ()
        assert "failures" not in found.fingerprint["probe"]
    first, second = seen.ranks
    assert first.model_sha256 == second.model_sha256
    assert first.data_sha256 != second.data_sha256


def test_steps_have_times_and_the_first_ten_a_loss_and_a_norm(seen: Run) -> None:
    for found in seen.ranks:
        assert len(found.steps) == STEPS
        assert all(step.seconds >= 0.02 for step in found.steps)
        assert all(step.loss and step.gradient_norm for step in found.steps[:10])
        assert [step.loss for step in found.steps[10:]] == [None, None]
    ours, theirs = (each.steps for each in seen.ranks)
    assert [step.loss for step in ours[:10]] != [step.loss for step in theirs[:10]]
    # The gradients were summed over the ranks.
    assert [step.gradient_norm for step in ours] == [step.gradient_norm for step in theirs]


def test_groups_are_known_with_their_classes_and_calls(seen: Run) -> None:
    world, pair = seen.ranks[0].groups
    assert (world.asked, world.classes["cpu"], world.timeout_s) == (
        "gloo",
        "ProcessGroupGloo",
        1800,
    )
    assert (world.ranks, pair.ranks, pair.asked) == ((0, 1), (0, 1), "gloo")
    assert world.calls >= STEPS * 4
    assert pair.calls == 1


def test_latencies_of_the_sweep_and_of_the_job_are_apart(seen: Run) -> None:
    sizes = [4 << 10, 256 << 10, 4 << 20]
    for found in seen.ranks:
        for operation in ("all_reduce", "send_recv"):
            swept = [each for each in found.latencies if each.operation == operation]
            assert [each.bytes for each in swept] == sizes
        own = {e.bytes: e.calls for e in found.latencies if e.operation == "job all_reduce"}
        # Two weights, two biases (one as large as the last weight), and the tensor of the pair.
        assert own == {WIDTH * WIDTH * 4: STEPS, WIDTH * 4: 2 * STEPS, 4: STEPS, 1024: 1}


def test_checkpoints_and_warnings_are_noted(seen: Run) -> None:
    for found in seen.ranks:
        assert [(each.action, each.function) for each in found.checkpoints] == [
            ("save", "torch.save"),
            ("load", "torch.load"),
        ]
        assert {(each.category, each.text) for each in found.warnings} == {
            ("UserWarning", "object at ADDRESS"),
            ("log of torch.distributed", "slow after N seconds"),
        }


def test_a_planted_gradient_shows_on_its_rank_from_its_step_on(seen: Run, planted: Run) -> None:
    norms = [[s.gradient_norm for s in r.ranks[1].steps[:10]] for r in (seen, planted)]
    assert norms[0][:2] == norms[1][:2]
    assert norms[0][2] != norms[1][2]
    losses = [[s.loss for s in r.ranks[1].steps[:4]] for r in (seen, planted)]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][3] != losses[1][3]


def test_everything_planted_is_marked(planted: Run) -> None:
    for rank, found in enumerate(planted.ranks):
        about = found.fingerprint["probe"]
        assert about["planted"][:2] == ["gradient@2:1", "warn:beware of this"]
        assert about["planted"][2].startswith("slow 1.5")
        assert about.get("happened", []) == (["gradient before step 2"] if rank == 1 else [])
        assert ("UserWarning", "beware of this") in {(e.category, e.text) for e in found.warnings}
        assert not any(each.operation == "all_reduce" for each in found.latencies)  # no sweep


def test_a_planted_slowdown_is_a_part_of_the_steps_own_time(seen: Run, planted: Run) -> None:
    assert all(set(each) == {OWN_SLEEP} for each in seen.sleeps)
    for found, asked in zip(planted.ranks, planted.sleeps, strict=True):
        slept = [seconds for seconds in asked if seconds != OWN_SLEEP]
        for step, seconds in zip(found.steps, slept, strict=True):
            assert seconds >= OWN_SLEEP / 2, "1.5 times as long as the step, which sleeps itself"
            assert step.seconds >= 3 * seconds - 1e-6, "half of it is planted, and all is noted"


def test_a_planted_crash_ends_both_ranks(tmp_path: Path) -> None:
    found = run_small(tmp_path, "--plant=crash@1:1", "--no-sweep")
    assert [each.code for each in found.ended] == [1, 1]
    assert found.ranks[1].error == ("PlantedCrash: planted by keepstep probe: crash before step 1")
    assert [each.end for each in found.ranks] == ["exception", "exception"]
    assert len(found.ranks[1].steps) == 1
    assert "Traceback" in found.ended[1].errors
    assert 'File "' + SMALL in found.ended[1].errors.splitlines()[1]  # nothing of the probe above


@pytest.mark.slow
def test_a_resumed_job_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "pipeline.py")
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    whole = losses(run([sys.executable, job, "--steps", "5"], world=2))
    first = losses(run([sys.executable, job, "--steps", "3", *checkpoint], world=2))
    rest = losses(run([sys.executable, job, "--steps", "2", *checkpoint, "--resume"], world=2))
    assert len(whole) == 5
    assert first + rest == whole


def losses(ended: list[Ended]) -> list[str]:
    """What the last rank printed of its steps."""
    assert [each.code for each in ended] == [0, 0], ended
    return ended[-1].output.splitlines()


def test_many_devices_without_gpus_says_why_it_cannot_tell() -> None:
    (ended,) = run([sys.executable, str(ROOT / "jobs" / "many_devices.py")])
    assert ended.code == 3
    assert ended.errors == "many_devices: 0 GPUs here; wanted two in one process\n"


def test_a_pipelines_look_at_shapes_is_no_data_of_a_step(tmp_path: Path) -> None:
    script = tmp_path / "one_stage.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.Linear(4, 4)\n"
        "stage = PipelineStage(model, 0, 1, torch.device('cpu'))\n"
        "schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    schedule.step(torch.ones(8, 4), target=torch.ones(8, 4))\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    (ended,) = run(probed(tmp_path, "--no-sweep", str(script)))
    assert ended.code == 0, ended.errors
    found = record(tmp_path, 0)
    assert len(found.steps) == 3
    assert found.tokens == 3 * 8 * 4  # and not one microbatch more


def test_the_command_prints_the_record_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('done'); raise SystemExit(7)")
    keepstep = str(Path(sys.executable).parent / "keepstep")
    (ended,) = run([keepstep, "probe", "--json", str(tmp_path / "script.py")])
    assert ended.code == 7
    assert json.loads(ended.output)["exit_code"] == 7
    assert ended.errors == "done\n"


def test_a_planted_hang_is_in_the_record_that_the_killed_rank_leaves(tmp_path: Path) -> None:
    command = probed(
        tmp_path, "--plant=hang@1:0", "--no-sweep", str(ROOT / "jobs/data_parallel.py")
    )
    with subprocess.Popen(command, env=variables(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"rank 0 step 0 ")
        deadline = time.monotonic() + 60
        while not (happened := record(tmp_path).fingerprint["probe"].get("happened")):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # nothing announces it: that rank only stops
        process.kill()
    found = record(tmp_path)
    assert happened == ["hang before step 1"]
    assert (found.end, len(found.steps)) == ("running", 1)


@pytest.mark.old_torch
def test_both_versions_train_the_same_model_on_the_same_data(tmp_path: Path) -> None:
    stack = create("2.14.1", torch="2.14.1")
    found: list[list[RankRecord]] = []
    for python in (stack.python, sys.executable):
        folder = tmp_path / str(len(found))
        words = probed(folder, str(ROOT / "jobs" / "data_parallel.py"), "--steps", "10")
        ended = run([python, *words[1:]], world=2)
        assert [each.code for each in ended] == [0, 0], ended
        found.append([record(folder, rank) for rank in range(2)])
    for old, new in zip(*found, strict=True):
        assert old.fingerprint["torch"]["version"] != new.fingerprint["torch"]["version"]
        assert (old.model_sha256, old.data_sha256) == (new.model_sha256, new.data_sha256)
        assert [(step.loss, step.gradient_norm) for step in old.steps] == [
            (step.loss, step.gradient_norm) for step in new.steps
        ]


def test_an_error_inside_torch_looks_as_without_the_probe(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch.distributed as dist\n"
        "try:\n    dist.init_process_group('nonsense')\n"
        "except Exception as error:\n    raise RuntimeError('no group') from error\n"
    )
    (plain,) = run([sys.executable, "script.py"], cwd=tmp_path)
    (seen,) = run(probed(tmp_path, "script.py"), cwd=tmp_path)
    assert (seen.code, seen.errors) == (plain.code, plain.errors)
