"""Budgets that need no statistics: memory, shutdown, recorder dumps, checkpoints."""

from __future__ import annotations

from keepstep.canary.gate.case import Case, settle
from keepstep.canary.record import RankRecord
from keepstep.canary.verdict import GateResult

_MOMENTS = {
    "before the first step": "memory_before_first_step",
    "at the peak": "memory_peak",
}


def memory(case: Case) -> GateResult:
    """No rank takes more than the plan allows, in bytes and over the reference."""
    limits = case.plan.limits
    problems = []
    most = 0
    for moment, field in _MOMENTS.items():
        usual = [_bytes(rank, field) for _, rank in case.reference_ranks()]
        known = [each for each in usual if each is not None]
        allowed = max(known) * (1 + limits.memory_growth) if known else None
        for where, rank in case.ranks():
            found = _bytes(rank, field)
            if found is None:
                problems.append(f"{where}: memory {moment} was not recorded")
                continue
            most = max(most, found)
            if limits.memory_bytes is not None and found > limits.memory_bytes:
                problems.append(f"{where}: {_mib(found)} {moment}, over the budget of the plan")
            if case.reference and allowed is not None and found > allowed:
                problems.append(
                    f"{where}: {_mib(found)} {moment}, the reference at most {_mib(max(known))}"
                )
    wanted = f"at most {100 * limits.memory_growth:g} % more than the reference"
    if limits.memory_bytes is not None:
        wanted += f", and at most {_mib(limits.memory_bytes)}"
    return settle(
        case,
        "memory",
        problems,
        seen=f"at most {_mib(most)} in a rank",
        wanted=wanted,
        mend="count the groups that the job makes: an eager backend pays for those it never uses "
        "(keepstep check)",
        compares=True,
    )


def shutdown(case: Case) -> GateResult:
    """Every rank came to its end in time."""
    limit = case.plan.limits.shutdown_s
    times = [(where, rank.shutdown_s) for where, rank in case.ranks()]
    problems = [f"{where}: shutdown was not recorded" for where, time in times if time is None]
    problems += [f"{where}: {time:.1f} s" for where, time in times if time and time > limit]
    longest = max((time for _, time in times if time is not None), default=0.0)
    return settle(
        case,
        "shutdown",
        problems,
        seen=f"at most {longest:.1f} s",
        wanted=f"at most {limit:g} s from the end of the script to the end of the process",
        mend="call destroy_process_group with nothing in flight",
    )


def artifacts(case: Case) -> GateResult:
    """Each rank left as many recorder dumps as the plan wants."""
    count = case.plan.limits.artifacts
    problems = [
        f"{where}: {len(rank.artifacts)}"
        for where, rank in case.ranks()
        if len(rank.artifacts) != count
    ]
    mend = (
        "a dump of a healthy run means that a timeout fired: read it with keepstep explain"
        if not count
        else "without a rank's dump a hang cannot be explained: keepstep explain PATH says why"
    )
    return settle(
        case,
        "artifacts",
        problems,
        seen=f"{count} of each rank",
        wanted=f"{count} recorder dumps of each rank",
        mend=mend,
    )


def checkpoint(case: Case) -> GateResult | None:
    """Every rank saved and loaded what the plan says that the job does."""
    if not case.job.checkpoint:
        return None
    problems = [
        f"{where}: no {action} of a checkpoint"
        for where, rank in case.ranks()
        for action in case.job.checkpoint
        if action not in {each.action for each in rank.checkpoints}
    ]
    return settle(
        case,
        "checkpoint",
        problems,
        seen=f"{' and '.join(case.job.checkpoint)} on every rank",
        wanted=f"{' and '.join(case.job.checkpoint)} on every rank",
        mend="look into the output: a save that did not happen is found when it is needed",
    )


def _bytes(rank: RankRecord, field: str) -> int | None:
    found: int | None = getattr(rank, field)
    return found


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
