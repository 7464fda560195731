"""Did every rank run on the same thing? One that does not hangs or trains wrongly later."""

from __future__ import annotations

from collections.abc import Iterator

from keepstep.canary.gate.case import Case, settle
from keepstep.canary.gate.seen import environment, has, of_the_job
from keepstep.canary.record import RankRecord, RunRecord
from keepstep.canary.verdict import GateResult

_UNSET = "unset"


def same_on_all_ranks(case: Case) -> GateResult:
    """Versions, libraries, variables and the groups' classes are those of rank 0 everywhere."""
    problems = [
        f"{where}: the fingerprint is missing or damaged"
        for where, rank in case.ranks()
        if not has(rank, "torch") or of_the_job(rank) is None
    ]
    for run in case.ended:
        problems += _differences(run)
    wrong = [
        f"{where}: {name} is {environment(rank).get(name, _UNSET)}"
        for where, rank in case.ranks()
        for name, value in case.cell.variables.items()
        if has(rank, "environment") and environment(rank).get(name) != value
    ]
    return settle(
        case,
        "ranks",
        problems + wrong,
        seen="versions, libraries, variables and classes are the same on every rank",
        wanted="the same on every rank"
        + "".join(f", with {name}={value}" for name, value in case.cell.variables.items()),
        mend="set the variable in the launcher's environment of every node, or install the same "
        "stack on all of them",
    )


def _differences(run: RunRecord) -> Iterator[str]:
    if not run.ranks:
        return
    first, *others = sorted(run.ranks, key=lambda rank: rank.rank)
    expected = _facts(first)
    for rank in others:
        found = _facts(rank)
        shared = _groups_of(first) & _groups_of(rank)
        for name in sorted(expected.keys() | found.keys()):
            if name.startswith("group.") and name.split(".", 1)[1].rpartition(".")[0] not in shared:
                continue
            here, there = found.get(name, _UNSET), expected.get(name, _UNSET)
            if here != there:
                yield (
                    f"pair {run.pair}: {name} is {there} on rank {first.rank} and {here} on rank "
                    f"{rank.rank}"
                )


def _facts(rank: RankRecord) -> dict[str, str]:
    facts = of_the_job(rank) or {}
    for group in rank.groups:
        classes = [f"{device}:{name}" for device, name in sorted(group.classes.items())]
        facts[f"group.{group.name}.classes"] = ", ".join(classes)
        facts[f"group.{group.name}.asked"] = group.asked
        facts[f"group.{group.name}.timeout"] = f"{group.timeout_s} s"
    return facts


def _groups_of(rank: RankRecord) -> set[str]:
    return {group.name for group in rank.groups}
