"""Were the two arms the same job? Otherwise nothing of them may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from keepstep.canary.cell import Cell
from keepstep.canary.gate.case import Case, settle
from keepstep.canary.gate.seen import OF_A_PLACE, OF_A_RANK, OF_A_RUN, environment
from keepstep.canary.plan import Plan
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.canary.verdict import GateResult

_PLANTED = ("--slow", "--faster")  # options of the probe, which only the controls have
Fact = tuple[str, str, object]  # where it was seen, what, the value


def identity(case: Case) -> GateResult | None:
    """Script, arguments, seed, weights, data, variables and launch line were the same."""
    facts = list(_facts(case.plan, case.cell, case.ended, case))
    if case.reference is not None:
        ended = [run for run in case.reference_runs if run.outcome is Outcome.COMPLETE]
        facts += _facts(case.plan, case.reference, ended, case)
    problems = [f"{where}: no {what}" for where, what, value in facts if value in (None, "", ())]
    problems += _differences(facts)
    return settle(
        case,
        "identity",
        problems,
        seen="script, arguments, seed, weights, data, variables and launch line are the same",
        wanted="the same job in every run of both arms",
        mend="make them equal: until then no difference can be put down to the stack",
        compares=True,
    )


def _facts(plan: Plan, cell: Cell, runs: Iterable[RunRecord], case: Case) -> Iterator[Fact]:
    declared = _declared(case)
    for run in runs:
        where = f"{cell.id}, pair {run.pair}"
        yield where, "digest of the script", run.job_sha256
        yield where, "launch line", _launch(plan, cell, run.launch)
        yield where, "variables of the launcher", _undeclared(run.variables, declared) or "none"
        for rank in run.ranks:
            for what, value in _of_stack(cell, rank).items():
                yield f"{where}, rank {rank.rank}", f"{what} of rank {rank.rank}", value
            for what, value in _of_rank(plan, cell, rank).items():
                yield f"{where}, rank {rank.rank}", f"{what} of rank {rank.rank}", value
            for name, value in _undeclared(environment(rank), declared).items():
                yield f"{where}, rank {rank.rank}", f"variable {name} of rank {rank.rank}", value


def _of_rank(plan: Plan, cell: Cell, rank: RankRecord) -> dict[str, object]:
    return {
        "digest of the script": rank.script_sha256,
        "arguments": _masked(plan, cell, rank.arguments) or "none",
        "seed": rank.seed,
        "digest of the weights": rank.model_sha256,
        "number of parameters": rank.model_parameters,
        "digest of the data": rank.data_sha256,
        "number of steps": len(rank.steps) or None,
        "world size": rank.world_size,
    }


def _of_stack(cell: Cell, rank: RankRecord) -> dict[str, object]:
    """Return what a stack must be in all its runs: named after it, since arms differ in it."""
    found = {part: rank.fingerprint.get(part) for part in ("torch", "packages")}
    return {
        f"{part} of the stack {cell.stack}": hashlib.sha256(
            json.dumps(value, sort_keys=True, default=str).encode()
        ).hexdigest()
        for part, value in found.items()
        if value
    }


def _differences(facts: list[Fact]) -> list[str]:
    """Return what was not the same everywhere; a variable that is set only here counts as well."""
    seen: dict[str, list[tuple[str, object]]] = {}
    for where, what, value in facts:
        seen.setdefault(what, []).append((where, value))
    places = {where for where, what, _ in facts if what.startswith("digest of the script of rank")}
    problems = []
    for what, found in seen.items():
        first_place, first = found[0]
        other = next(((where, value) for where, value in found if value != first), None)
        if other:
            problems.append(
                f"{what}: {_short(first)} in {first_place}, {_short(other[1])} in {other[0]}"
            )
        elif what.startswith("variable "):
            rank = what.rpartition("rank ")[2]
            having = {where for where, _ in found}
            lacking = {each for each in places if each.endswith(f"rank {rank}")} - having
            if lacking:
                problems.append(
                    f"{what}: {_short(first)} in {first_place}, unset in {min(lacking)}"
                )
    return problems


def _declared(case: Case) -> frozenset[str]:
    """Return the variables that may differ: the plan says that the cells differ in them."""
    named = set(case.cell.variables) | set(case.reference.variables if case.reference else ())
    return frozenset(named | OF_A_RUN | OF_A_PLACE | OF_A_RANK)


def _undeclared(variables: dict[str, str], declared: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in sorted(variables.items()) if name not in declared}


def _launch(plan: Plan, cell: Cell, launch: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in launch:
        if skip:
            skip = False
        elif word in _PLANTED:
            skip = True
        elif not word.startswith(tuple(f"{each}=" for each in _PLANTED)):
            kept.append(word)
    return _masked(plan, cell, tuple(kept))


def _masked(plan: Plan, cell: Cell, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line without what the plan says may differ: backend, checkpoint, binding."""
    extra = plan.topologies[cell.topology].arguments
    for start in range(len(words) - len(extra), -1, -1):
        if extra and words[start : start + len(extra)] == extra:
            words = words[:start] + words[start + len(extra) :]
            break
    template = plan.jobs[cell.job].arguments
    options = {
        template[index - 1]
        for index, word in enumerate(template)
        if index and "{checkpoint}" in word
    }
    return tuple(
        "{backend}"
        if word == cell.backend
        else "{checkpoint}"
        if index and words[index - 1] in options
        else word
        for index, word in enumerate(words)
    )


def _short(value: object) -> str:
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
