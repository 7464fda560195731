"""What a process says or swallows: new warnings, variables without effect, libraries twice."""

from __future__ import annotations

from keepstep.canary.gate.case import Case, settle
from keepstep.canary.gate.seen import duplicates, has, lost_variables
from keepstep.canary.gate.texts import plain
from keepstep.canary.verdict import GateResult


def warnings(case: Case) -> GateResult | None:
    """No warning that no run of the reference gave."""
    if case.reference is None:
        return None
    usual = {
        (warned.category, plain(warned.text))
        for _, rank in case.reference_ranks()
        for warned in rank.warnings
    }
    expected = [plain(each) for each in case.plan.expected_warnings]
    problems = [
        f"rank {rank.rank}: {warned.category}: {warned.text}"
        for _, rank in case.ranks()
        for warned in rank.warnings
        if (warned.category, plain(warned.text)) not in usual
        and not any(each in plain(warned.text) for each in expected)
    ]
    return settle(
        case,
        "warnings",
        problems,
        seen="none that the reference does not give",
        wanted="no new warning",
        mend="mend what it warns of, or put a part of its text into expected_warnings in the plan",
        compares=True,
    )


def environment(case: Case) -> GateResult:
    """No variable that the job sets is without effect, unless it was so before."""
    usual = {name for _, rank in case.reference_ranks() for name in lost_variables(rank)}
    problems = [
        f"{where}: the environment was not recorded"
        for where, rank in case.ranks()
        if not has(rank, "environment")
    ]
    problems += [
        f"{name} is {why}"
        for _, rank in case.ranks()
        for name, why in lost_variables(rank).items()
        if case.reference is not None and name not in usual
    ]
    return settle(
        case,
        "environment",
        problems,
        seen="every variable has the effect that it had",
        wanted="no variable that the reference reads and this stack ignores",
        mend="remove or rename it: keepstep check lists old and new names",
        compares=True,
    )


def libraries(case: Case) -> GateResult:
    """Each library that matters is loaded once."""
    problems = [
        f"{where}: the loaded libraries were not recorded"
        for where, rank in case.ranks()
        if not has(rank, "libraries")
    ]
    problems += [
        f"rank {rank.rank}: {each}" for _, rank in case.ranks() for each in duplicates(rank)
    ]
    return settle(
        case,
        "libraries",
        problems,
        seen="each is loaded once",
        wanted="one copy of each library of torch, CUDA and NCCL",
        mend="remove the other package or its place in LD_LIBRARY_PATH",
    )
