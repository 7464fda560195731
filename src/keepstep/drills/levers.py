"""The three ways back, and what each of them owes: a lever that nobody owns is not a plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from keepstep.drills.expected import VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way back."""

    name: str  # variable, spelling or stack
    what: str
    backend: str  # the spelling that the job passes on with it; "" for the one that it always does
    variables: tuple[tuple[str, str], ...]  # that every rank gets
    lives_in: str
    who: str
    restart: str
    keeps_checkpoints: str
    cannot_undo: str
    verified_by: str
    ends: str  # when it is gone
    source: str


VARIABLE_LEVER = Lever(
    name="variable",
    what=f"{VARIABLE}=0",
    backend="nccl",
    variables=((VARIABLE, "0"),),
    lives_in="the environment of the ranks: job file, launcher or the scheduler's template",
    who="whoever may change the environment of the job on all of its hosts",
    restart="yes: the variable is read once, when the name nccl is registered",
    keeps_checkpoints="yes",
    cannot_undo="CUDA wheel, cuDNN, compiler, checkpoint format",
    verified_by="every rank says which class it has built: ProcessGroupNCCL, type NCCL",
    ends="no release is announced that removes the old backend; plan as if it were PyTorch 2.16",
    source="torch/distributed/distributed_c10d.py of 2.15.0; pytorch/pytorch#192281",
)

SPELLING_LEVER = Lever(
    name="spelling",
    what='backend="nccl-legacy"',
    backend="nccl-legacy",
    variables=(),
    lives_in="the job's own code or configuration, wherever it makes a process group",
    who="whoever may change the job",
    restart="yes: a group keeps what it was built with",
    keeps_checkpoints="yes",
    cannot_undo="the same as the variable; and its type is CUSTOM, so code that asks for the "
    "NCCL-typed backend sees something else",
    verified_by="every rank says which class it has built: ProcessGroupNCCL, type CUSTOM",
    ends="no release is announced that removes the old backend; plan as if it were PyTorch 2.16",
    source="torch/distributed/distributed_c10d.py of 2.15.0; pytorch/pytorch#191272",
)

STACK_LEVER = Lever(
    name="stack",
    what="the old stack",
    backend="",
    variables=(),
    lives_in="the image or environment that the scheduler starts",
    who="whoever owns the image, and whoever runs the scheduler",
    restart="yes: with an image to fetch, several GB for each host",
    keeps_checkpoints="no: what was saved since the upgrade must be downgraded first",
    cannot_undo="the driver and whatever else changed on the hosts",
    verified_by="every rank says which PyTorch and commit it runs; the newest checkpoint, "
    "downgraded, is loaded there",
    ends="when the old image is deleted, or the driver no longer runs its CUDA",
    source="this drill",
)

LEVERS = {lever.name: lever for lever in (VARIABLE_LEVER, SPELLING_LEVER, STACK_LEVER)}


def debt(lever: Lever, *, owner: str, until: str) -> dict[str, Any]:
    """Return a lever as a row of debts: who answers for it, and until when it may be needed.

    Args:
        lever: The lever.
        owner: Who may pull it here; "" when nobody was named.
        until: The day by which it must not be needed any more (ISO 8601); "" when none was set.
    """
    facts = asdict(lever)
    facts["variables"] = dict(lever.variables)
    return {
        **facts,
        "owner": owner or "nobody named",
        "until": until or "no day set",
        "dated": bool(owner and until),
    }
