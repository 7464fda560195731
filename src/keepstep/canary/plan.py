"""A plan: which jobs run on which stacks, backends and topologies, and what may differ by how much.

A plan is one page of TOML. ``default_plan()`` is a good first one and shows every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from keepstep.canary.facts import Facts
from keepstep.canary.metrics import METRICS
from keepstep.canary.plan_text import PlanError, near, parse

Drill = Literal["hang", "rollback", "restore", "replace"]
# TOML has numbers: text, true and 5.0 in the place of 5 are mistakes, not other ways to write it.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Margin = Annotated[Number, Field(gt=0, lt=1)] | Literal["informative"]

_PLACES = ("backend", "seed", "checkpoint")  # filled in, in the arguments of a job
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # of what becomes a part of a cell's id
Name = Annotated[str, Field(pattern=_NAME)]


class Job(Facts):
    """A training script, unchanged, and what is known about it."""

    script: str  # absolute, or @jobs/NAME for one that comes with keepstep
    arguments: tuple[str, ...] = ()  # {backend}, {seed} and {checkpoint} are filled in
    launch: tuple[str, ...] = ()  # instead of the launcher of keepstep; {ranks} is filled in
    collective: str = "all_reduce"  # timed small and large; the probe makes these calls by itself
    point_to_point: str = "send_recv"  # the same for what one rank sends to another; "" for none
    checkpoint: tuple[Literal["save", "load"], ...] = ()  # that every rank must have done
    refusal: str = ""  # text that a refusal must hold; only for cells that must be refused


class Topology(Facts):
    """How many processes run where."""

    ranks: Annotated[Whole, Field(ge=1)]  # in all: the world size
    nodes: Annotated[Whole, Field(ge=1)] = 1
    gpus: Annotated[Whole, Field(ge=0)] = 0  # in all
    arguments: tuple[str, ...] = ()  # that the job gets besides, such as how it binds its device
    variables: dict[str, str] = Field(default_factory=dict)
    suffix: str = ""  # of the ids of its cells, where two would be the same without


class Comparison(Facts):
    """Jobs that run on the reference, on the reference once more, and on the candidate."""

    jobs: tuple[str, ...]
    topology: str
    backend: str
    controls: tuple[str, ...] = ()  # jobs that also run with a planted slowdown and a planted gain
    proves: str = ""


class Beside(Facts):
    """Jobs that run once more with one thing changed, compared with the reference."""

    role: Literal["lever", "separator", "refusal", "candidate"]
    jobs: tuple[str, ...]
    topology: str
    stack: str
    backend: str  # a spelling, and after a blank the variables, such as "nccl TORCH_X=0"
    against: str = ""  # the backend of the reference; "" for a refusal, which is not compared
    proves: str


class Parity(Facts):
    """How equal losses and gradient norms of the first steps must be."""

    tolerance: Annotated[Number, Field(ge=0, lt=1)] = 0.0  # relative; 0: to the last bit
    reason: str = ""  # why they may differ; demanded where they may


class Limits(Facts):
    """What a run may take. Seconds and bytes."""

    run_s: Annotated[Number, Field(gt=0)] = 120.0
    shutdown_s: Annotated[Number, Field(gt=0)] = 30.0
    memory_bytes: Annotated[Whole, Field(gt=0)] | None = None  # of one rank, at the peak
    memory_growth: Annotated[Number, Field(gt=0)] = 0.25  # over the reference, before and at peak
    artifacts: Annotated[Whole, Field(ge=0)] = 0  # recorder dumps that each rank leaves, exactly


class Rollback(Facts):
    """Who answers for the ways back. What nobody owns, and what has no end, is said to be so."""

    owner: str = ""  # who may pull a lever
    until: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""  # the day it must be gone


class Margins(Facts):
    """Per metric, how much worse is not worse; ``informative``: shown and not judged."""

    cpu: dict[str, Margin] = Field(default_factory=dict)
    gpu: dict[str, Margin] = Field(default_factory=dict)

    def of(self, gpus: int, metric: str) -> Margin:
        """Return a metric's margin where so many GPUs are used; left out, it is informative."""
        return (self.gpu if gpus else self.cpu).get(metric, "informative")

    @model_validator(mode="after")
    def _metrics_are_known(self) -> Margins:
        _known(METRICS, cpu=tuple(self.cpu), gpu=tuple(self.gpu))
        return self


class Plan(Facts):
    """What a rehearsal runs, and by which rules it is judged."""

    format: Literal[1]
    reference: str  # the stack that everything is compared with
    candidate: str  # the stack that everybody is to get
    pairs: Annotated[Whole, Field(ge=3, le=60)] = 5
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 64)] = 7  # what torch.manual_seed takes
    planted: Annotated[Number, Field(gt=0, lt=1)] = 0.10  # slowdown and gain of the controls
    valid_days: Annotated[Whole, Field(ge=1, le=366)] = 30  # of receipts
    drills: tuple[Drill, ...] = ()
    saving_job: str = ""  # that the drills rollback and restore save and resume
    expected_warnings: tuple[str, ...] = ()  # parts of texts that may be new
    stacks: dict[Name, str]  # to the name of a stack, or to a version of PyTorch
    backends: dict[str, dict[str, str]]  # by stack: spelling and variables to the class it builds
    jobs: dict[Name, Job]
    topologies: dict[str, Topology]
    compare: tuple[Comparison, ...]
    beside: tuple[Beside, ...] = ()
    margins: Margins
    limits: Limits = Limits()
    parity: Parity = Parity()
    rollback: Rollback = Rollback()

    @model_validator(mode="after")
    def _names_are_known(self) -> Plan:
        _known(self.stacks, reference=self.reference, candidate=self.candidate)
        for stack in self.backends:
            _known(self.stacks, **{"backends": stack})
        for number, each in enumerate(self.compare):
            for stack in (self.reference, self.candidate):
                self._place(f"compare.{number}", each, stack, each.backend)
            _known(each.jobs, **{f"compare.{number}.controls": each.controls})
            margin = self.margins.of(self.topologies[each.topology].gpus, "step")
            if each.controls and margin == "informative":
                raise Unfit(
                    f"compare.{number}.controls",
                    "wanted a margin for step: a planted slowdown is found by it",
                )
        for number, more in enumerate(self.beside):
            self._place(f"beside.{number}", more, more.stack, more.backend)
            if more.role != "refusal":
                self._is_compared(f"beside.{number}.against", more)
        return self

    @model_validator(mode="after")
    def _rules_are_whole(self) -> Plan:
        if "restore" in self.drills or "rollback" in self.drills:
            _known(self.jobs, saving_job=self.saving_job)
        for name, its in self.jobs.items():
            _filled_in(f"jobs.{name}.arguments", its.arguments)
        if self.parity.tolerance and not self.parity.reason:
            raise Unfit("parity.reason", "wanted why losses may differ, as tolerance is not 0")
        for number, more in enumerate(self.beside):
            for job in more.jobs:
                if more.role == "refusal" and not self.jobs[job].refusal:
                    raise Unfit(
                        f"jobs.{job}.refusal",
                        f"wanted the text of the refusal that beside.{number} waits for",
                    )
        return self

    def _place(self, key: str, each: Comparison | Beside, stack: str, backend: str) -> None:
        _known(self.jobs, **{f"{key}.jobs": each.jobs})
        _known(self.topologies, **{f"{key}.topology": each.topology})
        _known(self.stacks, **{f"{key}.stack": stack})
        _known(self.backends.get(stack, {}), **{f"{key}.backend": backend})

    def _is_compared(self, key: str, more: Beside) -> None:
        """A reference of the same jobs must run on that backend, in as many processes."""
        found = {
            job
            for each in self.compare
            if each.backend == more.against
            and self.topologies[each.topology].ranks == self.topologies[more.topology].ranks
            for job in each.jobs
        }
        if missing := sorted(set(more.jobs) - found):
            raise Unfit(
                key,
                f"saw {more.against!r}; wanted the backend of a compare entry with the same number "
                f"of ranks and the job {missing[0]}",
            )


class Unfit(ValueError):
    """A value that has the right type and contradicts another; travels inside pydantic."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key, self.text = key, text


def read_plan(path: Path) -> Plan:
    """Return the plan in a file; scripts in it are relative to its folder.

    Raises:
        PlanError: It is not one: the text names the key, the line, what was seen and wanted.
        OSError: It cannot be read.
    """
    plan = parse(path.read_text(encoding="utf-8"), str(path), Plan)
    folder = path.resolve().parent
    jobs = {
        name: job.model_copy(update={"script": _found(job.script, folder, name, path)})
        for name, job in plan.jobs.items()
    }
    return plan.model_copy(update={"jobs": jobs})


def default_plan() -> Plan:
    """Return the plan that comes with keepstep."""
    return parse(default_text(), "the default plan", Plan)


def default_text() -> str:
    """Return the TOML of the default plan, to start one's own with."""
    return (files("keepstep.canary") / "default.toml").read_text(encoding="utf-8")


def _found(script: str, folder: Path, job: str, path: Path) -> str:
    if script.startswith("@"):
        return script
    whole = folder / script
    if not whole.is_file():
        raise PlanError(
            f"{path}: jobs.{job}.script: saw {script!r}; wanted a file, relative to {folder}, or "
            "@jobs/NAME for a job that comes with keepstep"
        )
    return str(whole)


def _filled_in(key: str, arguments: Iterable[str]) -> None:
    """Refuse what looks like a place to fill in, mistyped: the job would get it as it stands."""
    for found in re.findall(r"\{(\w+)\}", " ".join(arguments)):
        if found not in _PLACES and (meant := near(found, _PLACES)):
            raise Unfit(
                key, f"saw '{{{found}}}'; wanted {{backend}}, {{seed}} or {{checkpoint}}{meant}"
            )


def _known(names: Iterable[str], **asked: str | tuple[str, ...]) -> None:
    known = list(names)
    for key, value in asked.items():
        for name in (value,) if isinstance(value, str) else value:
            if name not in known:
                wanted = ", ".join(sorted(known)) or "one that the plan defines, and there is none"
                raise Unfit(key, f"saw {name!r}; wanted {wanted}{near(name, known)}")
