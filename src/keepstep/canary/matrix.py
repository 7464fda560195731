"""From a plan to its cells: a star around the reference, not a cross product.

Crossing seven backend cells with nine topologies and four bindings gives 252 cells; most of them
would repeat what another one proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keepstep.canary.cell import Cell, Role
from keepstep.canary.plan import Beside, Comparison, Plan, Topology
from keepstep.canary.plan_text import PlanError

# Roles whose work is to say whether the judge can be believed.
CONTROLS = frozenset({Role.SAME, Role.SLOWER, Role.FASTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the allocation has."""

    gpus: int = 0
    nodes: int = 1


def cells(plan: Plan) -> tuple[Cell, ...]:
    """Return the cells of a plan, references first in each group.

    Raises:
        PlanError: Two cells would have the same name.
    """
    found: list[Cell] = []
    for each in plan.compare:
        for job in each.jobs:
            found += _compared(plan, each, job)
    for more in plan.beside:
        found += [_beside(plan, more, job) for job in more.jobs]
    seen: set[str] = set()
    for cell in found:
        if cell.id in seen:
            raise PlanError(
                f"two cells are called {cell.id}; wanted a suffix in topologies.{cell.topology}"
            )
        seen.add(cell.id)
    return tuple(found)


def runnable(cell: Cell, machine: Machine) -> str:
    """Return why a machine cannot run a cell, or nothing."""
    if cell.nodes > machine.nodes:
        return f"it needs {cell.nodes} nodes, and this is {machine.nodes}"
    if cell.gpus > machine.gpus:
        return f"it needs {_count(cell.gpus, 'GPU')}, and here {_are(machine.gpus)}"
    return ""


def arguments(plan: Plan, cell: Cell, checkpoint: str = "") -> list[str]:
    """Return what a job gets on its command line in a cell."""
    values = {"{backend}": cell.backend, "{seed}": str(plan.seed), "{checkpoint}": checkpoint}
    given = plan.jobs[cell.job].arguments + plan.topologies[cell.topology].arguments
    return [_filled(each, values) for each in given]


def wanted_class(plan: Plan, cell: Cell) -> str:
    """Return the class that the cell's backend must build: the name alone does not say it."""
    own = plan.topologies[cell.topology].variables
    levers = {name: value for name, value in cell.variables.items() if own.get(name) != value}
    asked = " ".join([cell.backend, *(f"{name}={value}" for name, value in levers.items())])
    return plan.backends[cell.stack][asked]


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _compared(plan: Plan, each: Comparison, job: str) -> Iterator[Cell]:
    topology = plan.topologies[each.topology]
    reference = _id(job, plan.reference, each.backend, topology)

    def cell(role: Role, stack: str, suffix: str, proves: str) -> Cell:
        return _cell(plan, each, role, job, stack).model_copy(
            update={
                "id": _id(job, stack, each.backend, topology, suffix),
                "against": "" if role is Role.REFERENCE else reference,
                "proves": proves,
            }
        )

    yield cell(Role.REFERENCE, plan.reference, "", "what everything is compared with")
    yield cell(Role.SAME, plan.reference, "same", "how much two equal runs differ")
    yield cell(Role.CANDIDATE, plan.candidate, "", each.proves)
    if job in each.controls:
        planted = f"{100 * plan.planted:g} %"
        slower, faster = f"a slowdown of {planted} is found", f"a gain of {planted} is no loss"
        yield cell(Role.SLOWER, plan.reference, "slower", slower)
        yield cell(Role.FASTER, plan.reference, "faster", faster)


def _beside(plan: Plan, more: Beside, job: str) -> Cell:
    topology = plan.topologies[more.topology]
    against = "" if more.role == "refusal" else _reference_of(plan, more, job)
    return _cell(plan, more, Role(more.role), job, more.stack).model_copy(
        update={
            "id": _id(job, more.stack, more.backend, topology),
            "against": against,
            "proves": more.proves,
        }
    )


def _reference_of(plan: Plan, more: Beside, job: str) -> str:
    """Return the id of the reference: same topology, or one with as many ranks."""
    found = [
        each
        for each in plan.compare
        if job in each.jobs
        and each.backend == more.against
        and plan.topologies[each.topology].ranks == plan.topologies[more.topology].ranks
    ]
    best = next((each for each in found if each.topology == more.topology), found[0])
    return _id(job, plan.reference, best.backend, plan.topologies[best.topology])


def _cell(plan: Plan, each: Comparison | Beside, role: Role, job: str, stack: str) -> Cell:
    spelling, *levers = each.backend.split()
    topology = plan.topologies[each.topology]
    return Cell(
        id=job,
        role=role,
        job=job,
        stack=stack,
        backend=spelling,
        topology=each.topology,
        world_size=topology.ranks,
        nodes=topology.nodes,
        gpus=topology.gpus,
        variables=topology.variables | dict(lever.split("=", 1) for lever in levers),
    )


def _id(job: str, stack: str, backend: str, topology: Topology, suffix: str = "") -> str:
    label = "+".join(backend.split())
    return "/".join(part for part in (job, stack, label, topology.suffix, suffix) if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(gpus: int) -> str:
    return "is none" if not gpus else "is 1" if gpus == 1 else f"are {gpus}"
