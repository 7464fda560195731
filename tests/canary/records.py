"""Builds records of runs as the probe and the launcher write them; each test changes one thing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keepstep.canary.cell import Cell, Role
from keepstep.canary.matrix import CONTROLS, arguments, cells, wanted_class
from keepstep.canary.plan import Plan, default_plan
from keepstep.canary.record import (
    Group,
    Latency,
    Outcome,
    RankRecord,
    RunRecord,
    Step,
    Warned,
)

STEPS = 20
SHA = {name: f"{number:064x}" for number, name in enumerate(("script", "model", "data"), 1)}


def small_plan(**changes: Any) -> Plan:
    """The default plan with one job on a CPU: reference, A/A, candidate and the two controls."""
    plan = default_plan()
    compare = (plan.compare[0].model_copy(update={"jobs": ("data_parallel",)}),)
    return plan.model_copy(update={"compare": compare, "beside": (), **changes})


def fingerprint(**changes: Any) -> dict[str, Any]:
    """What a process says about itself."""
    return {
        "torch": {"version": "2.14.1+cu130", "git": "5c48869", "cuda": "13.0"},
        "python": "3.12.3",
        "packages": {"torch": "2.14.1"},
        "libraries": [{"name": "libtorch_cpu.so", "path": "/a", "build_id": "b1"}],
        "duplicates": [],
        "nccl": {"version": "2.30.7", "path": "/a"},
        "driver": None,
        "gpus": [],
        "environment": {},
        **changes,
    }


def group(name: str = "default_pg", **changes: Any) -> Group:
    """A process group with gloo."""
    facts: dict[str, Any] = {
        "name": name,
        "ranks": (0, 1),
        "asked": "gloo",
        "classes": {"cpu": "ProcessGroupGloo"},
        "device": None,
        "timeout_s": 1800.0,
        "create_s": 0.02,
    }
    return Group(**(facts | changes))


def rank(number: int = 0, *, step_s: float = 0.03, **changes: Any) -> RankRecord:
    """A rank that trained for 20 steps."""
    facts: dict[str, Any] = {
        "rank": number,
        "local_rank": number,
        "world_size": 2,
        "host": "one",
        "pid": 100 + number,
        "end": "complete",
        "exit_code": 0,
        "fingerprint": fingerprint(),
        "script_sha256": SHA["script"],
        "arguments": ("--steps", str(STEPS), "--seed", "7", "--backend", "gloo"),
        "seed": 7,
        "model_sha256": SHA["model"],
        "model_parameters": 1000,
        "data_sha256": SHA["data"],
        "import_s": 1.5,
        "init_s": 0.05,
        "first_collective_s": 0.01,
        "shutdown_s": 0.2,
        "memory_before_first_step": 300 << 20,
        "memory_peak": 400 << 20,
        "groups": (group(),),
        "latencies": (
            Latency(operation="all_reduce", bytes=4, median_s=1e-4, calls=20),
            Latency(operation="all_reduce", bytes=1 << 20, median_s=1e-3, calls=20),
            Latency(operation="send_recv", bytes=1 << 20, median_s=1e-3, calls=20),
        ),
        "steps": tuple(step(each, step_s) for each in range(STEPS)),
        "tokens": 64 * STEPS,
    }
    return RankRecord(**(facts | changes))


def step(number: int, seconds: float = 0.03, **changes: Any) -> Step:
    """One step; its loss and gradient norm depend on its number alone."""
    first = number < 10
    facts: dict[str, Any] = {
        "seconds": seconds,
        "loss": 4 - number / 7 if first else None,
        "gradient_norm": 1 + number / 3 if first else None,
    }
    return Step(**(facts | changes))


def warned(text: str, category: str = "UserWarning") -> Warned:
    """A warning."""
    return Warned(category=category, text=text)


def run(cell: Cell, pair: int = 0, *, plan: Plan, **changes: Any) -> RunRecord:
    """A run that went well."""
    given = tuple(arguments(plan, cell))
    built = wanted_class(plan, cell)
    device = "cuda" if cell.gpus else "cpu"
    ranks = tuple(
        rank(
            number,
            world_size=cell.world_size,
            arguments=given,
            fingerprint=fingerprint(
                environment={
                    name: {"value": value, "status": "read", "note": ""}
                    for name, value in cell.variables.items()
                }
            ),
            groups=(
                group(
                    ranks=tuple(range(cell.world_size)),
                    asked=cell.backend,
                    classes={device: built},
                    device=f"cuda:{number}" if cell.gpus else None,
                ),
            ),
        )
        for number in range(cell.world_size)
    )
    facts: dict[str, Any] = {
        "cell": cell.id,
        "pair": pair,
        "order": pair,
        "started": "2026-11-30T00:00:00+00:00",
        "seconds": 5.0,
        "outcome": Outcome.COMPLETE,
        "exit_code": 0,
        "launch": (*_planted(cell, plan), f"{cell.job}.py", *given),
        "variables": dict(cell.variables),
        "stack": cell.stack,
        "job": cell.job,
        "job_sha256": SHA["script"],
        "ranks": ranks,
    }
    return RunRecord(**(facts | changes))


def rehearsal(
    plan: Plan, *, noise: float = 0.005, slower: Mapping[str, float] | None = None, seed: int = 0
) -> list[RunRecord]:
    """All runs of a plan, with noise of whole runs and the planted changes of the controls.

    Args:
        plan: What is run.
        noise: Standard deviation of a run's speed.
        slower: By cell, the factor on its step times.
        seed: Of the noise.
    """
    chance = random.Random(seed)
    runs = []
    for cell in cells(plan):
        factor = {Role.SLOWER: 1 + plan.planted, Role.FASTER: 1 / (1 + plan.planted)}
        for pair in range(plan.pairs):
            speed = factor.get(cell.role, 1.0) * (slower or {}).get(cell.id, 1.0)
            speed *= 1 + chance.gauss(0, noise)
            runs.append(timed(run(cell, pair, plan=plan), 0.03 * speed))
    return runs


def timed(record: RunRecord, step_s: float) -> RunRecord:
    """The run with other step times."""
    return each_rank(
        record,
        lambda one: one.model_copy(
            update={"steps": tuple(s.model_copy(update={"seconds": step_s}) for s in one.steps)}
        ),
    )


def each_rank(
    record: RunRecord, change: Callable[[RankRecord], RankRecord], only: int | None = None
) -> RunRecord:
    """The run with a change to every rank, or to one."""
    ranks = tuple(change(one) if only is None or one.rank == only else one for one in record.ranks)
    return record.model_copy(update={"ranks": ranks})


def changed(
    runs: Iterable[RunRecord],
    cell: str,
    change: Callable[[RunRecord], RunRecord],
    pair: int | None = None,
) -> list[RunRecord]:
    """The runs, with a change to those of one cell, or to one of them."""
    return [
        change(each) if each.cell == cell and pair in (None, each.pair) else each for each in runs
    ]


def with_rank(record: RunRecord, only: int | None = None, **changes: Any) -> RunRecord:
    """The run with other facts about its ranks, or about one of them."""
    return each_rank(record, lambda one: one.model_copy(update=changes), only)


def _planted(cell: Cell, plan: Plan) -> tuple[str, ...]:
    if cell.role not in CONTROLS - {Role.SAME}:
        return ()
    return ("--slow" if cell.role is Role.SLOWER else "--faster", str(1 + plan.planted))
