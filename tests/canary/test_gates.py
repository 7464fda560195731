"""Each gate: a fixture that it must find, and the same rehearsal without it, which passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from keepstep.canary.cell import Role
from keepstep.canary.judge import judge
from keepstep.canary.matrix import cells
from keepstep.canary.plan import Limits, Parity, Plan, default_plan
from keepstep.canary.record import CheckpointTime, Outcome, RankRecord, RunRecord
from keepstep.canary.verdict import CellVerdict, GateResult, Verdict
from tests.canary.records import (
    changed,
    each_rank,
    fingerprint,
    group,
    rehearsal,
    run,
    small_plan,
    step,
    warned,
    with_rank,
)

PLAN = small_plan(pairs=3)
CANDIDATE = "data_parallel/2.15/gloo"
REFERENCE = "data_parallel/2.14/gloo"
NEW_CLASS = group(classes={"cpu": "ProcessGroupWrapper"})


def cell_of(plan: Plan, runs: Sequence[RunRecord], cell: str = CANDIDATE) -> CellVerdict:
    return next(each for each in judge(plan, cells(plan), runs).cells if each.cell == cell)


def gate_of(verdict: CellVerdict, gate: str) -> GateResult:
    return next(each for each in verdict.gates if each.gate == gate)


def with_environment(record: RunRecord, only: int | None = None, **values: str) -> RunRecord:
    table = {name: {"value": value, "status": "read"} for name, value in values.items()}
    return with_rank(record, only, fingerprint=fingerprint(environment=table))


def ignored(record: RunRecord) -> RunRecord:
    table = {"TORCH_X": {"value": "1", "status": "renamed", "note": "now TORCH_Y"}}
    return with_rank(record, fingerprint=fingerprint(environment=table))


def with_step(number: int, only: int | None = None, **facts: Any) -> Callable[[RunRecord], Any]:
    def change(one: RankRecord) -> RankRecord:
        steps = list(one.steps)
        steps[number] = step(number, **facts)
        return one.model_copy(update={"steps": tuple(steps)})

    return lambda record: each_rank(record, change, only)


def outcome(kind: Outcome, **facts: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: record.model_copy(update={"outcome": kind, **facts})


def other(**facts: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: record.model_copy(update=facts)


def ranks(only: int | None = None, **facts: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: with_rank(record, only, **facts)


# What is planted, the gate that must find it, and words that must be in its answer.
PLANTED: dict[str, tuple[Callable[[RunRecord], RunRecord], str, str]] = {
    "crash": (outcome(Outcome.CRASH, reason="rank 1: exit code 1"), "crash", "exit code 1"),
    "hang": (outcome(Outcome.HANG, reason="not ended after 120 s"), "hang", "not ended"),
    "rank without record": (
        lambda record: record.model_copy(update={"ranks": record.ranks[:1]}),
        "records",
        "records of ranks 0",
    ),
    "rank cut off": (ranks(1, end="running", exit_code=None), "records", "rank 1"),
    "other script": (ranks(script_sha256="f" * 64), "identity", "digest of the script of rank 0"),
    "other job file": (other(job_sha256="f" * 64), "identity", "digest of the script"),
    "other arguments": (ranks(arguments=("--steps", "21")), "identity", "arguments of rank 0"),
    "packages changed between runs": (
        ranks(fingerprint=fingerprint(packages={"einops": "9"})),
        "identity",
        "packages of the stack 2.15 of rank 0",
    ),
    "other seed": (ranks(1, seed=8), "identity", "seed of rank 1: 7"),
    "swapped checkpoint": (ranks(model_sha256="f" * 64), "identity", "digest of the weights"),
    "other data": (ranks(data_sha256="f" * 64), "identity", "digest of the data"),
    "other launch line": (other(launch=("mpirun",)), "identity", "launch line"),
    "changed variable": (
        lambda record: with_environment(record, NCCL_ALGO="Tree"),
        "identity",
        "variable NCCL_ALGO of rank 0: Tree in data_parallel/2.15/gloo, pair 1, rank 0, unset",
    ),
    "variable of the launcher": (other(variables={"X": "1"}), "identity", "variables of the"),
    "variable on one rank": (
        lambda record: with_environment(record, 1, NCCL_ALGO="Tree"),
        "ranks",
        "variable.NCCL_ALGO is unset on rank 0 and Tree on rank 1",
    ),
    "other library on one rank": (
        ranks(
            1,
            fingerprint=fingerprint(
                libraries=[{"name": "libtorch_cpu.so", "path": "/b", "build_id": "b2"}]
            ),
        ),
        "ranks",
        "library.libtorch_cpu.so is b1 on rank 0 and b2 on rank 1",
    ),
    "class differs between ranks": (
        ranks(1, groups=(NEW_CLASS,)),
        "ranks",
        "cpu:ProcessGroupGloo on rank 0 and cpu:ProcessGroupWrapper on rank 1",
    ),
    "timeout differs between ranks": (ranks(1, groups=(group(timeout_s=600),)), "ranks", "600"),
    "damaged fingerprint": (
        ranks(fingerprint=fingerprint(libraries=[{"path": "/a"}])),
        "ranks",
        "missing or damaged",
    ),
    "another class": (ranks(groups=(NEW_CLASS,)), "backend", "is ProcessGroupWrapper"),
    "no group": (ranks(groups=()), "backend", "made no group with gloo"),
    "wrong loss": (with_step(9, loss=0.0), "parity", "loss of step 9 on rank 0: "),
    "wrong gradient of one rank": (
        with_step(3, only=1, gradient_norm=2.0000000000000004),
        "parity",
        "gradient norm of step 3 on rank 1: 2.0 in the reference, pair 0, 2.0000000000000004",
    ),
    "no gradient norm": (with_step(0, gradient_norm=None), "parity", "no gradient norm of rank 0"),
    "no loss": (with_step(0, loss=None), "parity", "no loss on any rank"),
    "memory at the start": (ranks(memory_before_first_step=500 << 20), "memory", "500 MiB before"),
    "memory at the peak": (ranks(1, memory_peak=600 << 20), "memory", "600 MiB at the peak"),
    "memory not recorded": (ranks(memory_peak=None), "memory", "was not recorded"),
    "slow shutdown": (ranks(shutdown_s=31.0), "shutdown", "31.0 s"),
    "shutdown not recorded": (ranks(shutdown_s=None), "shutdown", "was not recorded"),
    "dump of a healthy rank": (ranks(1, artifacts=("dump-1",)), "artifacts", "rank 1: 1"),
    "process left": (other(leftovers=("process 7 python",)), "leftovers", "process 7"),
    "shared memory left": (ranks(1, left_behind=("/dev/shm/x",)), "leftovers", "/dev/shm/x"),
    "new warning": (ranks(warnings=(warned("barrier() chose device 0"),)), "warnings", "barrier()"),
    "variable without effect": (ignored, "environment", "TORCH_X is renamed: now TORCH_Y"),
    "environment not recorded": (
        ranks(fingerprint=fingerprint(environment=None)),
        "environment",
        "was not recorded",
    ),
    "library twice": (
        ranks(
            fingerprint=fingerprint(
                duplicates=[{"name": "libnccl", "paths": ["/a", "/b"], "different": True}]
            )
        ),
        "libraries",
        "libnccl is loaded from /a and /b",
    ),
    "libraries not recorded": (
        ranks(fingerprint=fingerprint(libraries=None)),
        "libraries",
        "were not recorded",
    ),
}


def test_without_a_fault_every_gate_passes() -> None:
    verdict = cell_of(PLAN, rehearsal(PLAN))
    assert [gate for gate in verdict.gates if gate.verdict is not Verdict.PASS] == []
    assert verdict.verdict is Verdict.PASS


@pytest.mark.parametrize(("fault", "gate", "words"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_in_one_run_is_found(
    fault: Callable[[RunRecord], RunRecord], gate: str, words: str
) -> None:
    verdict = cell_of(PLAN, changed(rehearsal(PLAN), CANDIDATE, fault, pair=1))
    found = gate_of(verdict, gate)
    assert found.verdict is Verdict.FAIL
    assert words in found.seen
    assert found.wanted
    assert found.next
    assert verdict.verdict is Verdict.FAIL


def test_the_first_gate_that_fails_is_the_reason() -> None:
    runs = changed(rehearsal(PLAN), CANDIDATE, outcome(Outcome.HANG, reason="not ended"), pair=1)
    assert cell_of(PLAN, runs).reason == "hang: pair 1: not ended; wanted an end within 120 s"


def test_what_all_runs_show_alike_is_said_once() -> None:
    crash = outcome(Outcome.CRASH, reason="rank 1 ended with exit code 1")
    runs = changed(rehearsal(PLAN), CANDIDATE, crash)
    said = "3 runs (pairs 0, 1, 2): rank 1 ended with exit code 1"
    assert gate_of(cell_of(PLAN, runs), "crash").seen == said
    other = outcome(Outcome.CRASH, reason="rank 0 ended with signal 11")
    said = "2 runs (pairs 0, 2): rank 1 ended with exit code 1; pair 1: rank 0 ended with signal 11"
    assert gate_of(cell_of(PLAN, changed(runs, CANDIDATE, other, pair=1)), "crash").seen == said


@pytest.mark.parametrize("gate", ["parity", "memory", "backend", "artifacts", "leftovers"])
def test_what_a_crashed_run_could_not_say_is_inconclusive(gate: str) -> None:
    runs = changed(rehearsal(PLAN), CANDIDATE, outcome(Outcome.CRASH, ranks=()), pair=1)
    verdict = cell_of(PLAN, runs)
    assert gate_of(verdict, gate).verdict is Verdict.INCONCLUSIVE
    assert verdict.soft == ()


@pytest.mark.parametrize("gate", ["identity", "parity", "memory", "warnings", "environment"])
def test_without_a_whole_reference_nothing_is_compared(gate: str) -> None:
    runs = [each for each in rehearsal(PLAN) if each.cell != REFERENCE or each.pair]
    verdict = cell_of(PLAN, runs)
    assert gate_of(verdict, gate).verdict is Verdict.INCONCLUSIVE
    assert verdict.soft == ()


def test_a_warning_that_the_reference_gives_as_well_is_none() -> None:
    runs = [
        with_rank(each, warnings=(warned(f"slow after {each.order} s"),))
        for each in rehearsal(PLAN)
    ]
    assert gate_of(cell_of(PLAN, runs), "warnings").verdict is Verdict.PASS


def test_an_expected_warning_may_be_new() -> None:
    plan = small_plan(pairs=3, expected_warnings=("is deprecated",))
    fault = ranks(warnings=(warned("_x is deprecated since 2.15"),))
    runs = changed(rehearsal(plan), CANDIDATE, fault)
    assert gate_of(cell_of(plan, runs), "warnings").verdict is Verdict.PASS


def test_a_variable_that_never_had_an_effect_is_none_of_the_upgrade() -> None:
    verdict = cell_of(PLAN, [ignored(each) for each in rehearsal(PLAN)])
    assert gate_of(verdict, "environment").verdict is Verdict.PASS


def test_a_tolerance_of_the_plan_holds_for_parity() -> None:
    fault = with_step(3, gradient_norm=2.0001)
    plan = small_plan(pairs=3, parity=Parity(tolerance=1e-3, reason="a kernel changed"))
    runs = changed(rehearsal(plan), CANDIDATE, fault)
    found = gate_of(cell_of(plan, runs), "parity")
    assert found.verdict is Verdict.PASS
    assert "within 0.001" in found.seen


def test_a_loss_may_be_on_one_rank_only_as_in_a_pipeline() -> None:
    runs = rehearsal(PLAN)
    for number in range(10):
        runs = [with_step(number, only=0, loss=None)(each) for each in runs]
    assert gate_of(cell_of(PLAN, runs), "parity").verdict is Verdict.PASS


def test_a_missing_dump_is_found_where_the_plan_wants_one() -> None:
    plan = small_plan(pairs=3, limits=Limits(artifacts=1))
    runs = [ranks(artifacts=("dump",))(each) for each in rehearsal(plan)]
    assert gate_of(cell_of(plan, runs), "artifacts").verdict is Verdict.PASS
    missing = changed(runs, CANDIDATE, ranks(1, artifacts=()), pair=2)
    found = gate_of(cell_of(plan, missing), "artifacts")
    assert found.verdict is Verdict.FAIL
    assert found.seen == "pair 2, rank 1: 0"


def test_a_checkpoint_that_the_job_makes_must_be_there() -> None:
    job = PLAN.jobs["data_parallel"].model_copy(update={"checkpoint": ("save",)})
    plan = small_plan(pairs=3, jobs={**PLAN.jobs, "data_parallel": job})
    saved = CheckpointTime(action="save", function="dcp.save", seconds=0.1)
    runs = [ranks(checkpoints=(saved,))(each) for each in rehearsal(plan)]
    assert gate_of(cell_of(plan, runs), "checkpoint").verdict is Verdict.PASS
    found = gate_of(cell_of(plan, changed(runs, CANDIDATE, ranks(0, checkpoints=()))), "checkpoint")
    assert found.verdict is Verdict.FAIL


def test_the_budget_of_the_plan_holds_for_the_reference_too() -> None:
    plan = small_plan(pairs=3, limits=Limits(memory_bytes=350 << 20))
    found = gate_of(cell_of(plan, rehearsal(plan), REFERENCE), "memory")
    assert found.verdict is Verdict.FAIL
    assert "over the budget" in found.seen


def test_the_place_of_a_checkpoint_may_differ() -> None:
    job = PLAN.jobs["data_parallel"]
    more = job.model_copy(update={"arguments": (*job.arguments, "--checkpoint", "{checkpoint}")})
    plan = small_plan(pairs=3, jobs={**PLAN.jobs, "data_parallel": more})

    def placed(one: RunRecord) -> RunRecord:
        folder = (f"/tmp/{one.cell}/{one.pair}",)
        return each_rank(
            one, lambda each: each.model_copy(update={"arguments": each.arguments[:-1] + folder})
        )

    runs = [placed(each) for each in rehearsal(plan)]
    assert gate_of(cell_of(plan, runs), "identity").verdict is Verdict.PASS


class TestOnGpus:
    """Cells that need GPUs, from records."""

    plan = default_plan().model_copy(
        update={
            "pairs": 3,
            "compare": tuple(
                each.model_copy(update={"jobs": ("pipeline",), "controls": ()})
                for each in default_plan().compare
                if each.topology == "1 node, 2 GPUs"
            ),
            "beside": tuple(
                each.model_copy(update={"jobs": each.jobs[-1:]})
                for each in default_plan().beside
                if each.role in ("lever", "refusal")
            ),
        }
    )
    lever = "pipeline/2.15/nccl+TORCH_DIST_USE_NCCL2=0"

    def runs(self) -> list[RunRecord]:
        def refused(record: RunRecord) -> RunRecord:
            said = "RuntimeError: Expected tensor on cuda:0 but found tensor on cuda:1"
            return record.model_copy(update={"outcome": Outcome.REFUSED, "reason": said})

        return changed(rehearsal(self.plan), "many_devices/2.15/nccl", refused)

    def test_all_pass(self) -> None:
        judgement = judge(self.plan, cells(self.plan), self.runs())
        assert {cell.verdict for cell in judgement.cells} == {Verdict.PASS}, judgement.sentence

    def test_a_lever_on_one_rank_only_is_found(self) -> None:
        unset = ranks(1, fingerprint=fingerprint())
        verdict = cell_of(self.plan, changed(self.runs(), self.lever, unset, pair=0), self.lever)
        found = gate_of(verdict, "ranks")
        assert found.verdict is Verdict.FAIL
        assert "TORCH_DIST_USE_NCCL2 is 0 on rank 0 and unset on rank 1" in found.seen

    def test_a_lever_that_moves_nothing_is_found(self) -> None:
        built = group(asked="nccl", classes={"cuda": "ProcessGroupNCCL2"}, device="cuda:0")
        verdict = cell_of(
            self.plan, changed(self.runs(), self.lever, ranks(groups=(built,))), self.lever
        )
        found = gate_of(verdict, "backend")
        assert found.verdict is Verdict.FAIL
        assert found.wanted == "ProcessGroupNCCL for nccl on 2.15"

    def test_two_ranks_on_one_card_are_found(self) -> None:
        built = group(asked="nccl", classes={"cuda": "ProcessGroupNCCL2"}, device="cuda:0")
        cell = "pipeline/2.15/nccl"
        verdict = cell_of(self.plan, changed(self.runs(), cell, ranks(groups=(built,))), cell)
        assert "ranks 0 and 1 share cuda:0" in gate_of(verdict, "binding").seen

    def test_one_visible_card_for_each_rank_is_no_sharing(self) -> None:
        cell = "pipeline/2.15/nccl"
        built = group(asked="nccl", classes={"cuda": "ProcessGroupNCCL2"}, device="cuda:0")
        runs = self.runs()
        for number in (0, 1):
            seen = fingerprint(gpus=[{"uuid": f"GPU-{number}", "name": "H200"}])
            runs = changed(runs, cell, ranks(number, groups=(built,), fingerprint=seen))
        assert gate_of(cell_of(self.plan, runs, cell), "binding").verdict is Verdict.PASS

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (outcome(Outcome.COMPLETE), "ran as if nothing were wrong"),
            (outcome(Outcome.REFUSED, reason="ImportError: x"), "for another reason: ImportError"),
        ],
    )
    def test_a_refusal_needs_its_words(
        self, change: Callable[[RunRecord], RunRecord], words: str
    ) -> None:
        cell = "many_devices/2.15/nccl"
        verdict = cell_of(self.plan, changed(self.runs(), cell, change, pair=1), cell)
        assert verdict.role is Role.REFUSAL
        assert words in gate_of(verdict, "refusal").seen
        assert verdict.verdict is Verdict.FAIL

    def test_a_hang_is_no_refusal(self) -> None:
        cell = "many_devices/2.15/nccl"
        runs = changed(self.runs(), cell, outcome(Outcome.HANG, reason="killed"), pair=1)
        assert cell_of(self.plan, runs, cell).reason.startswith("hang: pair 1: killed")


def test_a_record_is_what_the_probe_writes() -> None:
    record = run(cells(PLAN)[0], plan=PLAN)
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
