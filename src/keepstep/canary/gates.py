"""The hard gates of a cell, in the order in which a reader wants to know."""

from __future__ import annotations

from collections.abc import Callable

from keepstep.canary.cell import Role
from keepstep.canary.gate.backend import backend, binding
from keepstep.canary.gate.case import Case
from keepstep.canary.gate.ends import crash, hang, leftovers, refusal, whole
from keepstep.canary.gate.identity import identity
from keepstep.canary.gate.limits import artifacts, checkpoint, memory, shutdown
from keepstep.canary.gate.notices import environment, libraries, warnings
from keepstep.canary.gate.parity import parity
from keepstep.canary.gate.ranks import same_on_all_ranks
from keepstep.canary.verdict import GateResult

Gate = Callable[[Case], GateResult | None]  # None: it does not apply

OF_A_JOB: tuple[Gate, ...] = (
    whole,
    crash,
    hang,
    identity,
    same_on_all_ranks,
    backend,
    binding,
    parity,
    checkpoint,
    memory,
    shutdown,
    artifacts,
    leftovers,
    warnings,
    environment,
    libraries,
)
OF_A_REFUSAL: tuple[Gate, ...] = (hang, refusal, leftovers)


def pass_gates(case: Case) -> tuple[GateResult, ...]:
    """Return the answers of the gates that apply to a cell."""
    gates = OF_A_REFUSAL if case.cell.role is Role.REFUSAL else OF_A_JOB
    return tuple(result for gate in gates if (result := gate(case)) is not None)
