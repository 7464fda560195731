"""A cell: one job on one stack, one backend spelling and one topology."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from keepstep.canary.facts import Facts


class Role(StrEnum):
    """What a cell is for."""

    REFERENCE = "reference"  # the old stack, what everything is compared with
    SAME = "same"  # the reference once more (A/A): what differs here is noise
    CANDIDATE = "candidate"  # what everybody gets after the upgrade
    LEVER = "lever"  # the new stack with a way back pulled
    SEPARATOR = "separator"  # tells whose change it is, such as the new backend on the old stack
    REFUSAL = "refusal"  # must be refused, and say why
    SLOWER = "slower"  # control: the reference with a planted slowdown, which must be found
    FASTER = "faster"  # control: with a planted gain, which must not be called a loss


class Cell(Facts):
    """What runs, and where."""

    id: str  # such as dp/2.15/gloo, unique in a plan and fit for a file name once / became __
    role: Role
    job: str  # the name of a job of the plan
    stack: str  # the name of a stack of the plan
    backend: str  # the spelling that the job passes on, such as gloo, nccl, nccl-legacy
    topology: str  # such as "1 node, 2 ranks"
    world_size: int
    nodes: int = 1
    gpus: int = 0  # that it needs
    variables: dict[str, str] = Field(
        default_factory=dict
    )  # that it sets, such as TORCH_DIST_USE_NCCL2=0
    against: str = ""  # the id of the cell that it is compared with; "" for a reference
    proves: str = ""  # in one clause, for the report when it was not run
