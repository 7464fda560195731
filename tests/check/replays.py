"""The field reports of docs/field-reports.md as fixtures: each with a twin that must not be found.

A replay is called with ``bad`` and returns the names of everything that was found: codes of
``keepstep check``, ``gate NAME`` and ``soft NAME`` of the judge, ``readers`` of a checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from keepstep.canary.cell import Role
from keepstep.canary.judge import judge
from keepstep.canary.matrix import cells
from keepstep.canary.plan import Limits, Plan, default_plan
from keepstep.canary.record import CheckpointTime, Latency, Outcome, RankRecord, RunRecord
from keepstep.canary.verdict import Verdict
from keepstep.check import machine
from keepstep.check.counted import count
from keepstep.check.extensions import try_extensions
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.look import look_at_code
from keepstep.check.machine import Packages
from keepstep.check.machine_facts import MachineFacts
from keepstep.check.wheels import WHEELS
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from tests.canary.records import (
    changed,
    each_rank,
    fingerprint,
    group,
    rehearsal,
    warned,
    with_rank,
)
from tests.check.job import END, IMPORTS, READY, look_at, question, write_job
from tests.check.test_machine import build
from tests.checkpoint.conftest import DATA

Replay = Callable[[bool, Path], set[str]]
Change = Callable[[RunRecord], RunRecord]

INIT = 'dist.init_process_group("nccl")\n'


def worth_a_word(findings: Iterable[Finding]) -> set[str]:
    """Return the codes of findings, notes too: a replay names the one that it waits for."""
    return {each.code for each in findings}


def checked(folder: Path, *parts: str, **options: str) -> set[str]:
    """Look at the code of a job made of these parts."""
    return worth_a_word(look_at(folder, IMPORTS, *parts, **options).findings)  # type: ignore[arg-type]


def gpu_plan(comparison: int = 1, job: str = "data_parallel", **changes: Any) -> Plan:
    """The default plan with one job on GPUs: reference, A/A and candidate."""
    plan = default_plan()
    only = plan.compare[comparison].model_copy(update={"jobs": (job,), "controls": ()})
    return plan.model_copy(update={"compare": (only,), "beside": (), "pairs": 5, **changes})


def judged(
    plan: Plan, change: Change, pair: int | None = None, everywhere: Change | None = None
) -> set[str]:
    """Judge a rehearsal in which runs of the candidate were changed; return what did not pass."""
    all_cells = cells(plan)
    candidate = next(each.id for each in all_cells if each.role is Role.CANDIDATE)
    runs = [everywhere(each) if everywhere else each for each in rehearsal(plan)]
    runs = changed(runs, candidate, change, pair)
    verdict = next(each for each in judge(plan, all_cells, runs).cells if each.cell == candidate)
    gates = {f"gate {each.gate}" for each in verdict.gates if each.verdict is Verdict.FAIL}
    return gates | {f"soft {each.metric}" for each in verdict.soft if each.verdict is Verdict.FAIL}


def outcome(bad: bool, kind: Outcome, reason: str) -> Change:
    """A run that ended in another way."""
    if not bad:
        return lambda record: record
    return lambda record: record.model_copy(
        update={"outcome": kind, "reason": reason, "exit_code": None, "ranks": ()}
    )


def memory(factor: float, *fields: str) -> Change:
    """Ranks that take more device memory."""

    def change(one: RankRecord) -> RankRecord:
        return one.model_copy(update={name: int(getattr(one, name) * factor) for name in fields})

    return lambda record: each_rank(record, change)


def step_times(factor: float) -> Change:
    """Slower steps."""

    def change(one: RankRecord) -> RankRecord:
        slower = (s.model_copy(update={"seconds": s.seconds * factor}) for s in one.steps)
        return one.model_copy(update={"steps": tuple(slower)})

    return lambda record: each_rank(record, change)


def latencies(factor: float) -> Change:
    """Slower calls."""

    def slower(one: Latency) -> Latency:
        return one.model_copy(update={"median_s": one.median_s * factor})

    return lambda record: each_rank(
        record,
        lambda rank: rank.model_copy(update={"latencies": tuple(map(slower, rank.latencies))}),
    )


# One function a report, in the order of the table.


def hang_at_the_first_barrier(bad: bool, folder: Path) -> set[str]:
    """1: two nodes, and the first barrier never returns."""
    change = outcome(bad, Outcome.HANG, "not ended after 120 s: both nodes wait in barrier")
    return judged(gpu_plan(comparison=2), change)


def rare_hang(bad: bool, folder: Path) -> set[str]:
    """2: one run of five hangs."""
    return judged(gpu_plan(), outcome(bad, Outcome.HANG, "not ended after 120 s"), pair=3)


def memory_at_init(bad: bool, folder: Path) -> set[str]:
    """3: communicators take more before the first step."""
    return judged(gpu_plan(), memory(1.6 if bad else 1.05, "memory_before_first_step"))


def memory_at_graph_capture(bad: bool, folder: Path) -> set[str]:
    """4: 3.8 GB instead of 1.14 at the peak."""
    return judged(gpu_plan(), memory(3.8 / 1.14 if bad else 1.02, "memory_peak"))


def out_of_memory(bad: bool, folder: Path) -> set[str]:
    """5: a release candidate runs out of memory in NCCL."""
    return judged(gpu_plan(), outcome(bad, Outcome.CRASH, "rank 0: NCCL: Cuda failure 2"))


def local_rank_of_two_cards(bad: bool, folder: Path) -> set[str]:
    """6: four ranks model nodes of two cards by LOCAL_RANK, and choose the card themselves."""
    bound = "" if bad else ', device_id=torch.device("cuda", rank)'
    source = f"""
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_RANK"] = str(rank % 2)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl"{bound})
    """
    return checked(folder, source, END)


def two_ranks_on_one_card(bad: bool, folder: Path) -> set[str]:
    """6, as the canary sees it: both ranks are bound to cuda:0."""

    def change(one: RankRecord) -> RankRecord:
        device = "cuda:0" if bad else f"cuda:{one.rank}"
        groups = tuple(each.model_copy(update={"device": device}) for each in one.groups)
        return one.model_copy(update={"groups": groups})

    return judged(gpu_plan(), lambda record: each_rank(record, change))


def cast_in_an_engine(bad: bool, folder: Path) -> set[str]:
    """7: the C++ code asks for the NCCL backend and casts it."""
    script = write_job(folder, IMPORTS)
    cast = "auto* nccl = dynamic_cast<c10d::ProcessGroupNCCL*>(backend.get());"
    use = "auto nccl = c10d::ProcessGroupNCCL::Options::create();"
    (folder / "engine.cpp").write_text(f"void f() {{ {cast if bad else use} }}\n")
    return worth_a_word(look_at_code(question(script))[0].findings)


def name_of_the_backend(bad: bool, folder: Path) -> set[str]:
    """8: a framework takes another way when the backend is not called nccl."""
    names = '("nccl", "nccl2", "nccl-lazy", "nccl-legacy")'
    test = '== "nccl"' if bad else f"in {names}"
    source = f"if dist.get_backend(group) {test}:\n    tensor = tensor.cuda()\n"
    return checked(folder, READY, source, END)


def old_checkpoint_does_not_load(bad: bool, folder: Path) -> set[str]:
    """9: the new version stops at the old version's checkpoint."""
    error = "rank 0: CheckpointException: Can't get attribute '_MEM_FORMAT_ENCODING'"
    return judged(gpu_plan(), outcome(bad, Outcome.CRASH, error))


def optimizer_is_not_restored(bad: bool, folder: Path) -> set[str]:
    """10: the job goes on without having loaded what it saved."""
    job = default_plan().jobs["data_parallel"]
    jobs = {"data_parallel": job.model_copy(update={"checkpoint": ("save", "load")})}
    done = [CheckpointTime(action="save", function="torch.distributed.checkpoint.save", seconds=1)]
    if not bad:
        load = "torch.distributed.checkpoint.load"
        done.append(CheckpointTime(action="load", function=load, seconds=1))
    return judged(gpu_plan(jobs=jobs), lambda record: with_rank(record, checkpoints=tuple(done)))


def way_back_of_checkpoints(bad: bool, folder: Path) -> set[str]:
    """11: the job saves what 2.14 cannot load."""
    save = "dcp.save(state, checkpoint_id=path)" if bad else "torch.save(model.state_dict(), path)"
    return checked(folder, READY, save, END)


def real_checkpoint_of_2_15(bad: bool, folder: Path) -> set[str]:
    """11: a real checkpoint of 2.15.0, and one of 2.14.1."""
    found = find_readers(LocalStore(DATA / f"torch-{'2.15.0' if bad else '2.14.1'}" / "plain"))
    return set() if found.readers["2.14"] else {"checkpoint readers"}


def weights_only(bad: bool, folder: Path) -> set[str]:
    """12: the default of torch.load changed in 2.6."""
    told = "" if bad else ", weights_only=False"
    report = look_at(folder, IMPORTS, f"state = torch.load(path{told})", old="2.5", new="2.6")
    return {each.code for each in report.findings if each.severity is Severity.CHANGES}


def extension_of_another_torch(bad: bool, folder: Path) -> set[str]:
    """13: a compiled extension wants a symbol that this torch does not have."""
    extension = build(folder, "flash", "_ZN3c1011not_in_c10Ev" if bad else "")
    return worth_a_word(try_extensions((sys.executable,), [extension], {"flash"}, True, []))


def another_torch_was_resolved(bad: bool, folder: Path) -> set[str]:
    """13: a requirement pulled in another PyTorch."""
    asked = replace(question(write_job(folder, "")), wished_torch="2.15.0", stack="new")
    seen = Packages(torch="2.14.1+cu130" if bad else "2.15.0+cu132", cuda="13.0")
    return worth_a_word(machine._wished(asked, seen))


def two_nccls(bad: bool, folder: Path) -> set[str]:
    """14: the wheels of two CUDA versions bring an NCCL each."""
    _, scene = look_at_code(question(write_job(folder, IMPORTS, READY)))
    found = {"nvidia-nccl-cu13": "2.29.7", **({"nvidia-nccl-cu12": "2.29.3"} if bad else {})}
    return worth_a_word(machine.nccls(scene, Packages(torch="2.15.0", cuda="13.2", nccls=found)))


def two_nccls_are_loaded(bad: bool, folder: Path) -> set[str]:
    """14, as the canary sees it in the running process."""
    twice = [{"name": "libnccl.so.2", "paths": ["/a/libnccl.so.2", "/b/libnccl.so.2"]}]
    return judged(
        gpu_plan(),
        lambda record: with_rank(record, fingerprint=fingerprint(duplicates=twice if bad else [])),
    )


def old_driver(bad: bool, folder: Path) -> set[str]:
    """15: a driver for CUDA 12 under a wheel for CUDA 13."""
    version = "535.104.05" if bad else "580.95.05"
    return worth_a_word(machine.driver(version, WHEELS["2.15"].cuda, "2.15", []))


def volta(bad: bool, folder: Path) -> set[str]:
    """16: the wheel has no code for the card."""
    gpu = "sm_70" if bad else "sm_75"
    return worth_a_word(machine.architectures((gpu,), WHEELS["2.15"].architectures, "2.15"))


def fabric_manager(bad: bool, folder: Path) -> set[str]:
    """17: the driver was updated, the fabric manager was not."""
    manager = "535.161.08" if bad else "550.54.15"
    facts = MachineFacts(gpus=("sm_90",) * 8, driver="550.54.15", fabric_manager=manager)
    return worth_a_word(machine.fabric(facts, []))


def twice_as_slow(bad: bool, folder: Path) -> set[str]:
    """18: 16 hours instead of 7."""
    return judged(gpu_plan(), step_times(16 / 7 if bad else 1.005))


def slow_collectives(bad: bool, folder: Path) -> set[str]:
    """19: 53 GB/s instead of 142."""
    return judged(gpu_plan(), latencies(142 / 53 if bad else 1.005))


def slowdown_of_a_nightly(bad: bool, folder: Path) -> set[str]:
    """20: some runs are slower, by a tenth."""
    return judged(gpu_plan(), step_times(1.1 if bad else 1.0))


def abort_hangs(bad: bool, folder: Path) -> set[str]:
    """21: the job is done, and the process does not end for ten minutes."""
    return judged(gpu_plan(), lambda record: with_rank(record, shutdown_s=600.0 if bad else 2.0))


def left_behind(bad: bool, folder: Path) -> set[str]:
    """21: processes of the job are still there afterwards."""
    left = ("process 4711: python train.py",) if bad else ()
    return judged(gpu_plan(), lambda record: record.model_copy(update={"leftovers": left}))


def wrong_gradients(bad: bool, folder: Path) -> set[str]:
    """22: the loss looks right at first, and the gradient norm differs from step 3 on."""

    def change(one: RankRecord) -> RankRecord:
        steps = [
            each.model_copy(update={"gradient_norm": each.gradient_norm * 1.01})
            if bad and number >= 3 and each.gradient_norm is not None
            else each
            for number, each in enumerate(one.steps)
        ]
        return one.model_copy(update={"steps": tuple(steps)})

    return judged(gpu_plan(), lambda record: each_rank(record, change))


def dead_variable(bad: bool, folder: Path) -> set[str]:
    """23: a variable of the old backend, in the launch line."""
    name = "TORCH_NCCL_AVOID_RECORD_STREAMS" if bad else "NCCL_DEBUG"
    return checked(folder, READY, END, launch=f"{name}=1 torchrun train.py")


def dead_variable_of_a_rank(bad: bool, folder: Path) -> set[str]:
    """23, as the canary sees it in the running process."""

    def with_status(status: str) -> Change:
        table = {"TORCH_X": {"value": "1", "status": status, "note": ""}}
        return lambda record: with_rank(record, fingerprint=fingerprint(environment=table))

    status = "removed" if bad else "read"
    return judged(gpu_plan(), with_status(status), everywhere=with_status("read"))


def slow_save(bad: bool, folder: Path) -> set[str]:
    """24: 30 minutes became 10, and nobody said how long a save may take."""
    limit = "" if bad else ", timeout=timedelta(hours=1)"
    source = f'dist.init_process_group("nccl2"{limit})\ndcp.save(state)\n'
    return checked(folder, source, END)


def unknown_device(bad: bool, folder: Path) -> set[str]:
    """25: a barrier guesses its device, and says so from this version on."""
    text = "barrier(): using the device under current context. You can specify `device_id`"
    return judged(
        gpu_plan(), lambda record: with_rank(record, warnings=(warned(text),) if bad else ())
    )


def barrier_without_device(bad: bool, folder: Path) -> set[str]:
    """25, in the code."""
    return checked(folder, INIT if bad else READY, "dist.barrier()\n", END)


def no_backend_named(bad: bool, folder: Path) -> set[str]:
    """26: the job leaves the choice to the version."""
    return checked(folder, "dist.init_process_group()\n" if bad else READY, END)


def gloo_instead_of_nccl(bad: bool, folder: Path) -> set[str]:
    """26, as the canary sees it: the class that was built."""
    built = group(
        asked="nccl", classes={"cuda": "ProcessGroupGloo" if bad else "ProcessGroupNCCL2"}
    )

    def change(one: RankRecord) -> RankRecord:
        bound = built.model_copy(update={"device": f"cuda:{one.rank}"})
        return one.model_copy(update={"groups": (bound,)})

    return judged(gpu_plan(), lambda record: each_rank(record, change))


def local_rank_with_a_dash(bad: bool, folder: Path) -> set[str]:
    """27: the launcher passes --local-rank, the script takes --local_rank."""
    names = '"--local_rank"' if bad else '"--local-rank", "--local_rank"'
    source = f"""
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument({names}, type=int)
    args = parser.parse_args()
    torch.cuda.set_device(args.local_rank)
    """
    line = "python -m torch.distributed.launch --nproc_per_node 8 train.py"
    return checked(folder, source, END, launch=line)


def missing_dump(bad: bool, folder: Path) -> set[str]:
    """28: rank 1 leaves no recording."""
    plan = gpu_plan(limits=Limits(artifacts=1))

    def change(one: RankRecord) -> RankRecord:
        left = () if bad and one.rank == 1 else (f"comm_lib_trace_rank_{one.rank}",)
        return one.model_copy(update={"artifacts": left})

    return judged(plan, lambda record: each_rank(record, change))


def pipeline_hangs(bad: bool, folder: Path) -> set[str]:
    """30: two stages send first."""
    change = outcome(bad, Outcome.HANG, "not ended after 120 s: ranks 0 and 1 wait in send")
    return judged(gpu_plan(job="pipeline"), change)


def one_by_one(bad: bool, folder: Path) -> set[str]:
    """30, in the code."""
    alone = "dist.send(out, stage + 1)\ndist.recv(gradient, stage + 1)\n"
    together = "dist.batch_isend_irecv([dist.P2POp(dist.isend, out, 1)])\n"
    return checked(folder, READY, alone if bad else together, END)


def many_groups(bad: bool, folder: Path) -> set[str]:
    """31: each group of a mesh costs a communicator."""
    asked = question(write_job(folder, IMPORTS, READY))
    _, scene = look_at_code(asked)
    unseen: list[NotLooked] = []
    layout = "mesh=dp:8,tp:2" if bad else "mesh=dp:16"
    found, unseen = count(scene, replace(asked, groups=(layout,)))
    assert not unseen
    return {each.code for each in found if each.severity is Severity.CHANGES}


# Number of the report, what catches it, the fixture.
REPLAYS: tuple[tuple[int, str, Replay], ...] = (
    (1, "gate hang", hang_at_the_first_barrier),
    (2, "gate hang", rare_hang),
    (3, "gate memory", memory_at_init),
    (4, "gate memory", memory_at_graph_capture),
    (5, "gate crash", out_of_memory),
    (6, "KS103", local_rank_of_two_cards),
    (6, "gate binding", two_ranks_on_one_card),
    (7, "KS202", cast_in_an_engine),
    (8, "KS201", name_of_the_backend),
    (9, "gate crash", old_checkpoint_does_not_load),
    (10, "gate checkpoint", optimizer_is_not_restored),
    (11, "KS404", way_back_of_checkpoints),
    (11, "checkpoint readers", real_checkpoint_of_2_15),
    (12, "KS403", weights_only),
    (13, "KS705", extension_of_another_torch),
    (13, "KS708", another_torch_was_resolved),
    (14, "KS707", two_nccls),
    (14, "gate libraries", two_nccls_are_loaded),
    (15, "KS701", old_driver),
    (16, "KS702", volta),
    (17, "KS703", fabric_manager),
    (18, "soft step", twice_as_slow),
    (19, "soft collective_large", slow_collectives),
    (20, "soft step", slowdown_of_a_nightly),
    (21, "gate shutdown", abort_hangs),
    (21, "gate leftovers", left_behind),
    (22, "gate parity", wrong_gradients),
    (23, "KS501", dead_variable),
    (23, "gate environment", dead_variable_of_a_rank),
    (24, "KS405", slow_save),
    (25, "KS105", barrier_without_device),
    (25, "gate warnings", unknown_device),
    (26, "KS106", no_backend_named),
    (26, "gate backend", gloo_instead_of_nccl),
    (27, "KS601", local_rank_with_a_dash),
    (28, "gate artifacts", missing_dump),
    (30, "KS305", one_by_one),
    (30, "gate hang", pipeline_hangs),
    (31, "KS303", many_groups),
)
