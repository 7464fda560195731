"""Rehearsals as they come out of real work: one that passes, one that fails, one without answer."""

from __future__ import annotations

from typing import Any

from keepstep.canary.cell import Cell, Role
from keepstep.canary.verdict import (
    CellVerdict,
    Control,
    GateResult,
    Judgement,
    SoftResult,
    Verdict,
)
from keepstep.drills.record import DrillRecord, Proof
from keepstep.report.model import (
    BoundaryRow,
    CellResult,
    CheckpointAnswer,
    Cost,
    Machine,
    NotRun,
    Numbers,
    OpenDifference,
    ReceiptFile,
    Rehearsal,
    StackSummary,
)

JOBS = ("data_parallel", "sharded", "tensor", "pipeline")
GATES = ("crash", "hang", "identity", "parity", "memory", "artifacts", "leftovers", "warnings")
SOFT = (
    ("step time", "s", 0.0412, 1.004, 0.991, 1.017, 0.05),
    ("initialisation", "s", 0.213, 1.021, 0.962, 1.083, 0.25),
    ("first collective", "s", 0.0041, 0.982, 0.871, 1.107, 0.50),
    ("all_reduce 1 MB", "s", 0.00081, 1.011, 0.971, 1.052, 0.10),
    ("send and receive 64 kB", "s", 0.00012, 1.002, 0.944, 1.063, 0.10),
    ("throughput", "elements/s", 5519.2, 1.006, 0.991, 1.021, 0.05),
    ("peak memory", "bytes", 412_000_000.0, 1.018, 1.016, 1.021, 0.05),
    ("checkpoint save", "s", 0.181, 0.973, 0.902, 1.049, 0.25),
    ("shutdown", "s", 0.061, 1.013, 0.901, 1.139, 0.50),
)
NO_GPU = "it needs 2 GPUs, and there is none here"


def cell(job: str, stack: str, role: Role, *, backend: str = "gloo", suffix: str = "") -> Cell:
    """A cell of the matrix."""
    reference = f"{job}/2.14/{backend.split('-')[0]}"
    gpus = 0 if backend == "gloo" else 2
    return Cell(
        id=f"{job}/{stack}/{backend}{suffix}",
        role=role,
        job=job,
        stack=stack,
        backend=backend,
        topology="1 node, 2 GPUs" if gpus else "1 node, 2 ranks",
        world_size=2,
        gpus=gpus,
        against="" if role is Role.REFERENCE else reference,
        proves={
            Role.REFERENCE: "what everything is compared with",
            Role.SAME: "how much two equal runs differ",
            Role.CANDIDATE: "training is the same on the new stack, as fast, in as much memory",
            Role.LEVER: "the way back works",
            Role.SLOWER: "a slowdown of 10 % is found",
            Role.FASTER: "a gain of 10 % is no loss",
        }.get(role, ""),
    )


def matrix() -> list[Cell]:
    """The cells that a machine without a GPU runs."""
    found = []
    for job in JOBS:
        found.append(cell(job, "2.14", Role.REFERENCE))
        found.append(cell(job, "2.14", Role.SAME, suffix="/same"))
        found.append(cell(job, "2.15", Role.CANDIDATE))
    found.append(cell(JOBS[0], "2.14", Role.SLOWER, suffix="/slower"))
    found.append(cell(JOBS[0], "2.14", Role.FASTER, suffix="/faster"))
    return found


def on_gpus() -> list[Cell]:
    """The cells that it does not."""
    found = []
    for job in JOBS:
        found.append(cell(job, "2.14", Role.REFERENCE, backend="nccl"))
        found.append(cell(job, "2.15", Role.CANDIDATE, backend="nccl"))
        found.append(cell(job, "2.15", Role.LEVER, backend="nccl-legacy"))
    return found


def soft(shift: float = 1.0) -> tuple[SoftResult, ...]:
    """The metrics of a cell; ``shift`` makes its steps slower."""
    found = []
    for metric, unit, reference, ratio, lower, upper, margin in SOFT:
        by = shift if metric == "step time" else 1.0
        found.append(
            SoftResult(
                metric=metric,
                unit=unit,
                verdict=Verdict.PASS if lower * by < 1 + margin else Verdict.FAIL,
                judged=metric != "shutdown",
                reference=reference,
                candidate=reference * ratio * by,
                ratio=ratio * by,
                lower=lower * by,
                upper=upper * by,
                margin=margin,
                pairs=5,
                noise=0.011,
            )
        )
    return tuple(found)


def gates(failed: str = "", text: str = "") -> tuple[GateResult, ...]:
    """The gates of a cell, of which one may fail."""
    return tuple(
        GateResult(
            gate=gate,
            verdict=Verdict.FAIL if gate == failed else Verdict.PASS,
            seen=text if gate == failed else "as wanted in 5 of 5 runs",
            wanted="the same as the reference",
            next="keepstep receipt diff of the two receipts, then keepstep check on the script"
            if gate == failed
            else "",
        )
        for gate in GATES
    )


def judged(each: Cell, **changes: Any) -> CellResult:
    """A cell with what the judge said of it."""
    same = each.role is Role.REFERENCE
    verdict = CellVerdict(
        **{
            "cell": each.id,
            "role": each.role,
            "verdict": Verdict.PASS,
            "runs": 5,
            "gates": gates(),
            "soft": () if same else soft(1.10 if each.role is Role.SLOWER else 1.0),
            "reason": "5 runs completed"
            if same
            else "8 gates passed; 8 metrics are within their margins",
            "hang_bound": "0 of 5 runs hung: under 46 % of runs hang (95 % confidence)",
            **changes,
        }
    )
    return CellResult(
        cell=each,
        state="judged",
        verdict=verdict,
        seconds=41.3,
        receipt=f"receipts/{each.id.replace('/', '__')}.json",
    )


CONTROLS = (
    Control(
        name="same",
        cell="data_parallel/2.14/gloo/same",
        verdict=Verdict.PASS,
        reason="two equal runs: no metric differs by more than the margin, noise 1.1 %",
    ),
    Control(
        name="slower",
        cell="data_parallel/2.14/gloo/slower",
        verdict=Verdict.PASS,
        reason="the planted 10 % were found: step time 1.10 times, 1.09 to 1.12",
    ),
    Control(
        name="faster",
        cell="data_parallel/2.14/gloo/faster",
        verdict=Verdict.PASS,
        reason="the planted gain is not called a loss",
    ),
)


def drills() -> tuple[DrillRecord, ...]:
    """The four drills, all passed."""
    common: dict[str, Any] = {
        "backend": "gloo",
        "verdict": Verdict.PASS,
        "started": "2026-11-30T08:41:00Z",
    }
    return (
        DrillRecord(
            **common,
            drill="hang",
            name="hang/2.15/gloo",
            stack="2.15",
            reason="rank 1 was held, both ranks left their dump, and the diagnosis named rank 1",
            proofs=(
                proof("rank 1 was held before the collective", "state T in 50 of 50 looks"),
                proof("the timeout fired", "after 10.2 s of 10 s"),
                proof("every rank left its dump", "2 of 2, 3 s old, on ext4"),
                proof("the diagnosis names the held rank", "rank 1, high confidence"),
            ),
            facts={
                "artifacts": [
                    {
                        "rank": rank,
                        "how": "by itself",
                        "path": f"own/trace_rank_{rank}",
                        "arrived": True,
                        "owner": "trainer",
                        "size": 48_120,
                        "age_s": 2.836,
                        "mount_point": "/",
                        "file_system": "ext4",
                        "survives": None,
                        "operations": 4,
                        "last": "all_reduce 4",
                        "sha256": "8f40ef8d" * 8,
                        "problem": "",
                    }
                    for rank in (0, 1)
                ],
                "timeout_s": 10,
            },
            seconds=24.1,
        ),
        DrillRecord(
            **common,
            drill="rollback",
            name="rollback/2.15/gloo",
            stack="2.15",
            reason="the old stack takes over from the newest checkpoint; a lever on one rank only "
            "was caught",
            proofs=(
                proof("the old stack was running on every rank", "2.14.1 on ranks 0 and 1"),
                proof("a lever on rank 0 only is caught", "named: rank 1 lacks it"),
            ),
            seconds=31.0,
        ),
        DrillRecord(
            **common,
            drill="restore",
            name="restore/2.14-2.15",
            stack="2.15",
            reason="each direction behaves as it must, and the loss goes on where it was",
            proofs=(
                proof("the new stack reads an old checkpoint", "loss 1.8312 after 1.8355"),
                proof("the old stack refuses a new one", "too many values to unpack (expected 5)"),
                proof("the old stack reads it once it is downgraded", "all 24 tensors equal"),
            ),
            seconds=38.5,
        ),
        DrillRecord(
            **common,
            drill="replace",
            name="replace/2.15/gloo",
            stack="2.15",
            reason="rank 1 was killed and replaced in 0.9 s; parameters end bit-identical",
            proofs=(
                proof("rank 1 was killed", "SIGKILL, exit seen after 4 ms"),
                proof("the job ends as if nothing had happened", "digest 9f3c equal"),
            ),
            seconds=19.7,
        ),
    )


def proof(what: str, seen: str, verdict: Verdict = Verdict.PASS) -> Proof:
    """One proof of a drill."""
    return Proof(what=what, verdict=verdict, seen=seen, wanted=what, evidence="log.txt")


BOUNDARY = (
    BoundaryRow(
        lever="TORCH_DIST_USE_NCCL2=0",
        undoes="the backend behind the name nccl",
        how="whoever starts the job sets it on every rank; the job is started again",
        until="the release that removes it (not announced)",
        keeps_checkpoints="yes",
        cannot_undo="the CUDA wheel, the checkpoint format, the compiler, cuDNN",
        proven=Verdict.NOT_RUN,
        proof="needs a GPU",
    ),
    BoundaryRow(
        lever='backend="nccl-legacy"',
        undoes="the backend of the groups that ask for it",
        how="the owner of the script changes one line; the job is started again",
        until="the release that removes it (not announced)",
        keeps_checkpoints="yes",
        cannot_undo="the same; other code sees another backend type",
        proven=Verdict.NOT_RUN,
        proof="needs a GPU",
    ),
    BoundaryRow(
        lever="the old stack",
        undoes="everything in the image",
        how="whoever owns the image pins 2.14.1; several GB are pulled again",
        until="the first checkpoint that only 2.15 can read",
        keeps_checkpoints="no, unless downgraded: keepstep checkpoint downgrade",
        cannot_undo="the driver, and whatever else changed on the hosts",
        proven=Verdict.PASS,
        proof="rollback/2.15/gloo and restore/2.14-2.15",
        receipt="receipts/rollback__2.15__gloo.json",
    ),
)

CHECKPOINT = CheckpointAnswer(
    question="Which is the newest checkpoint that 2.14 can read?",
    verdict=Verdict.PASS,
    answer="step-20, the newest of all, once it is downgraded; as it was written, step-10",
    evidence=(
        "step-20: written by 2.15.0, form D; 2.14.1 refused it, then loaded the downgraded copy",
        "step-10: written by 2.14.1, form C; 2.14.1 loaded it",
    ),
)

DIFFERENCE = OpenDifference(
    where="data_parallel/2.15/gloo",
    what="limits.memlock",
    values={"rank 0": "unlimited", "rank 1": "65536"},
    note="ranks of one job are to run on the same thing",
)


def rehearsal(**changes: Any) -> Rehearsal:
    """A rehearsal; what is not named is as in one that passes."""
    cells = changes.pop("cells", tuple(judged(each) for each in matrix()))
    found: dict[str, Any] = {
        "plan": "default.toml",
        "plan_sha256": "4be1" * 16,
        "keepstep": "0.2.0",
        "started": "2026-11-30T08:31:12+00:00",
        "seconds": 731.4,
        "machine": Machine(
            host="node-a",
            processors=2,
            memory_bytes=16_000_000_000,
            system="Linux 6.8.0",
        ),
        "stacks": (
            StackSummary(
                name="2.14",
                torch="2.14.1+cu130",
                origin="created",
                facts={
                    "torch.version": "2.14.1+cu130",
                    "torch.git": "5c4886908584029761b579af026dcfb627c84070",
                    "torch.cuda": "13.0",
                    "nccl": "2.30.7",
                    "python": "3.11.7",
                },
            ),
            StackSummary(
                name="2.15",
                torch="2.15.0+cu132",
                origin="created",
                facts={
                    "torch.version": "2.15.0+cu132",
                    "torch.git": "d0f2af8b66b20da4baa50644c0cd3f887a2eae2e",
                    "torch.cuda": "13.2",
                    "nccl": "2.30.7",
                    "python": "3.11.7",
                },
            ),
        ),
        "cells": cells,
        "judgement": Judgement(
            verdict=Verdict.PASS,
            sentence="all cells that were compared are as good as their reference",
            cells=tuple(each.verdict for each in cells if each.verdict),
            controls=CONTROLS,
        ),
        "drills": drills(),
        "boundary": BOUNDARY,
        "checkpoint": CHECKPOINT,
        "costs": tuple(
            Cost(
                what=f"{job}, 1 node, 2 ranks",
                unit="core hours",
                per_step={f"{job}/2.14/gloo": 0.000231, f"{job}/2.15/gloo": 0.000234},
                note="start, initialisation and end of a run included",
            )
            for job in JOBS
        ),
        "numbers": tuple(
            Numbers(
                cell=f"{job}/2.15/gloo",
                against=f"{job}/2.14/gloo",
                runs=5,
                reference_runs=5,
                steps=10,
                difference=1.5e-7 if job == JOBS[0] else None,
                where="loss of step 3 on rank 1" if job == JOBS[0] else "",
                missing="no loss of step 4 on any rank" if job == JOBS[1] else "",
            )
            for job in JOBS
        ),
        "receipts": tuple(
            ReceiptFile(
                file=f"receipts/{each.cell.id.replace('/', '__')}.json",
                sha256=f"{number:064x}",
                about=each.cell.id,
            )
            for number, each in enumerate(cells)
            if each.verdict
        ),
        **changes,
    }
    return Rehearsal(**found)


SEALED = ReceiptFile(file="receipts/rehearsal.json", sha256="c0de" * 16, about="rehearsal")


def passing() -> Rehearsal:
    """Everything was run and passed."""
    return rehearsal()


def inconclusive() -> Rehearsal:
    """A machine without a GPU: nothing failed, and what needs one stays open."""
    cells = tuple(judged(each) for each in matrix())
    open_cells = tuple(CellResult(cell=each, state="not run") for each in on_gpus())
    return rehearsal(
        cells=cells + open_cells,
        judgement=Judgement(
            verdict=Verdict.INCONCLUSIVE,
            sentence="nothing failed; 12 of 26 cells were not run",
            cells=tuple(each.verdict for each in cells if each.verdict),
            controls=CONTROLS,
            open=("training with nccl is the same on the new stack",),
        ),
        not_run=tuple(NotRun(what=each.id, proves=each.proves, why=NO_GPU) for each in on_gpus()),
        unprovable=(
            "that nccl2, the new meaning of nccl, works: it needs a GPU",
            "how much device memory eager communicators take",
            "anything about a second node: initialisation, the network, the launcher",
        ),
        notes=("taken up again at 2026-11-30T08:36:40+00:00; 12 runs are of an earlier sitting",),
    )


def failing() -> Rehearsal:
    """One cell computes something else, one is slower, a drill fails, a control has no answer."""
    cells = {each.id: judged(each) for each in matrix()}
    wrong, slow = "tensor/2.15/gloo", "pipeline/2.15/gloo"
    cells[wrong] = judged(
        cells[wrong].cell,
        verdict=Verdict.FAIL,
        gates=gates("parity", "loss of step 3: 1.8312 against 1.8355 of the reference"),
        soft=(),
        reason="the loss is another one from step 3 on",
    )
    cells[slow] = judged(
        cells[slow].cell,
        verdict=Verdict.FAIL,
        soft=soft(1.13),
        reason="step time is 1.13 times that of the reference, and the margin is 1.05",
    )
    unsure = "sharded/2.15/gloo"
    cells[unsure] = judged(
        cells[unsure].cell,
        verdict=Verdict.INCONCLUSIVE,
        soft=(
            SoftResult(
                metric="step time",
                unit="s",
                verdict=Verdict.INCONCLUSIVE,
                reference=0.041,
                candidate=0.043,
                ratio=1.041,
                lower=0.97,
                upper=1.118,
                margin=0.05,
                pairs=5,
                pairs_wanted=14,
                noise=0.048,
                reason="the noise of 4.8 % does not allow an answer with 5 pairs; 14 would",
            ),
        ),
        reason="the noise does not allow an answer: 14 pairs would",
    )
    hang, *others = drills()
    missing = DrillRecord(
        **{
            **hang.model_dump(),
            "verdict": Verdict.FAIL,
            "reason": "rank 1 left no dump",
            "proofs": (
                *hang.proofs[:2],
                Proof(
                    what="every rank left its dump",
                    verdict=Verdict.FAIL,
                    seen="1 of 2: rank 1 left none",
                    wanted="a dump of each of the 2 ranks",
                    evidence="dumps/",
                ),
            ),
            "next": "give the ranks a folder that they can write: TORCH_FR_DUMP_TEMP_FILE",
        }
    )
    return rehearsal(
        cells=tuple(cells.values()),
        judgement=Judgement(
            verdict=Verdict.FAIL,
            sentence="2 of 14 cells failed",
            cells=tuple(each.verdict for each in cells.values() if each.verdict),
            controls=CONTROLS,
        ),
        drills=(missing, *others),
        differences=(DIFFERENCE,),
    )


ALL = {"passing": passing, "failing": failing, "inconclusive": inconclusive}
