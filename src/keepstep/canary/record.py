"""What was seen when a cell ran: one record a rank, written by the probe, and one a run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from keepstep.canary.facts import Facts


class Group(Facts):
    """One process group of one rank."""

    name: str
    ranks: tuple[int, ...]
    asked: str  # the spelling that the job passed; "" when it passed none
    classes: dict[str, str]  # device type to the class that was built
    device: str | None  # that it is bound to
    timeout_s: float | None  # the effective one
    options: dict[str, Any] = Field(default_factory=dict)
    create_s: float
    memory_bytes: int | None = None  # of the device, that creating it took; None without a device
    calls: int = 0  # operations that the job started on it


class Latency(Facts):
    """One kind of call at one size, as this rank saw it."""

    operation: str  # such as all_reduce, send_recv
    bytes: int
    median_s: float
    calls: int


class Warned(Facts):
    """A warning of the job's process, with what differs from run to run taken out of its text."""

    category: str
    text: str
    times: int = 1


class CheckpointTime(Facts):
    """One save or load of a checkpoint."""

    action: Literal["save", "load"]
    function: str  # such as torch.distributed.checkpoint.save
    seconds: float


class Step(Facts):
    """One optimizer step."""

    seconds: float  # since the end of the step before
    loss: float | None = None  # kept of the first ten; mean of the backward passes; None: not seen
    gradient_norm: float | None = None  # of this rank's gradients, before the step; first ten


class RankRecord(Facts):
    """What the probe saw in one process. Seconds are wall clock, memory is bytes."""

    format: Literal[1] = 1
    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    end: Literal["running", "complete", "exception", "exit"]  # running: it never got to say
    exit_code: int | None = None
    error: str = ""  # type and text of the exception
    fingerprint: dict[str, Any] = Field(
        default_factory=dict
    )  # keepstep.stack.fingerprint, read in this process
    script_sha256: str = ""
    arguments: tuple[str, ...] = ()
    seed: int | None = None  # torch.initial_seed() at the first step
    model_sha256: str | None = None  # of the parameters before the first step
    model_parameters: int | None = None
    data_sha256: str | None = None  # of what the first ten outermost forward calls were given
    import_s: float | None = None  # of torch
    init_s: float | None = None  # of init_process_group
    first_collective_s: float | None = None
    shutdown_s: float | None = None  # from the end of the script to the end of destroy and exit
    memory_before_first_step: int | None = None  # of the device; of the process without one
    memory_peak: int | None = None
    groups: tuple[Group, ...] = ()
    latencies: tuple[Latency, ...] = ()
    steps: tuple[Step, ...] = ()
    tokens: int | None = None  # elements of the inputs of all steps, for throughput
    checkpoints: tuple[CheckpointTime, ...] = ()
    warnings: tuple[Warned, ...] = ()
    artifacts: tuple[str, ...] = ()  # recorder dumps that this rank wrote
    left_behind: tuple[str, ...] = ()  # threads, children, shared memory at the end


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"  # exit code 0 within the limit
    CRASH = "crash"  # another exit code, or a signal
    HANG = "hang"  # the limit passed; everything was killed
    REFUSED = "refused"  # it ended by itself with the refusal that a refusal cell waits for
    NOT_RUN = "not run"  # this machine cannot


class RunRecord(Facts):
    """One run of one cell."""

    format: Literal[1] = 1
    cell: str
    pair: int  # 0, 1, ...: runs with the same number are neighbours in time
    order: int  # position among all runs of the rehearsal
    started: str  # ISO 8601, UTC
    seconds: float
    outcome: Outcome
    exit_code: int | None = None
    reason: str = ""  # why it crashed, hung, was refused or was not run
    launch: tuple[str, ...] = ()  # the command, without paths that differ between stacks
    variables: dict[str, str] = Field(default_factory=dict)  # that the launcher set
    stack: str = ""
    job: str = ""
    job_sha256: str = ""
    ranks: tuple[RankRecord, ...] = ()
    leftovers: tuple[str, ...] = ()  # processes and files that were still there afterwards
    output_tail: str = ""
