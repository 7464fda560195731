"""The rollback drill: each way back is pulled, and every rank has to say what it runs on then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.errors import CheckpointError
from keepstep.drills.hang import hang
from keepstep.drills.job_runs import (
    ACROSS,
    RANKS,
    JobRun,
    SavingJob,
    largest_difference,
    run_job,
)
from keepstep.drills.lever_proofs import (
    OLD_BACKEND,
    prove_class,
    prove_partly,
    prove_resolution,
)
from keepstep.drills.levers import LEVERS, Lever, debt
from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook, Say, quiet
from keepstep.drills.record import DrillRecord
from keepstep.drills.resolutions import Place, Resolutions, resolve_on
from keepstep.drills.surroundings import gpus, minor_of
from keepstep.drills.test_loads import load_on, make_readable
from keepstep.stack.named import Stack

STEPS = 4  # of the smoke test
_NO_GPU = "needs an NVIDIA GPU, this machine has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What one drill is about."""

    old: Stack
    new: Stack
    job: SavingJob
    folder: Path
    limits: Limits
    notebook: Notebook

    def resolve(self, first: Place, others: Place, label: str) -> Resolutions:
        """Ask rank 0 in one place, and the others in another, what a name means to them."""
        self.notebook.say(f"{self.notebook.name}: {label}")
        places = [first, *[others] * (RANKS - 1)]
        folder = self.folder / label.replace(" ", "-")
        return resolve_on(places, folder=folder, limit_s=self.limits.start_s)

    def run(
        self, stack: Stack, label: str, backend: str, variables: Mapping[str, str], *more: str
    ) -> JobRun:
        """Run the smoke test."""
        self.notebook.say(f"{self.notebook.name}: {label}")
        run = run_job(
            stack,
            self.job,
            ("--seed", "0", "--steps", str(STEPS), *more),
            label=label,
            folder=self.folder / label.replace(" ", "-"),
            limit_s=self.limits.job_s,
            backend=backend,
            variables=lambda _: variables,
        )
        if run.records and run.records[0].fingerprint:
            self.notebook.fingerprints.setdefault(stack.name, run.records[0].fingerprint)
        return run


def rollback(
    old: Stack,
    new: Stack,
    *,
    job: SavingJob,
    folder: Path,
    levers: Sequence[str] = tuple(LEVERS),
    owner: str = "",
    until: str = "",
    limits: Limits | None = None,
    say: Say = quiet,
    name: str = "",
) -> DrillRecord:
    """Pull each way back and prove on every rank that it is pulled and that the job runs.

    Without a GPU the first two levers cannot build an NCCL class. What is shown then is how the
    name resolves on every rank, that the variable was read when it was registered, and that a lever
    on some ranks only is noticed before the first collective; the rest is not run, and the drill
    inconclusive.

    Args:
        old: The stack to go back to.
        new: The stack of the upgrade.
        job: The smoke test.
        folder: For the evidence; made when missing.
        levers: Of ``variable``, ``spelling`` and ``stack``.
        owner: Who may pull them here.
        until: The day by which nobody may need them any more (ISO 8601).
        limits: See there.
        say: Told of each proof.
        name: Of the record; default ``rollback/`` and the levers.
    """
    chosen = [LEVERS[each] for each in levers]
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    notebook = Notebook(
        drill="rollback",
        name=name or f"rollback/{'+'.join(lever.name for lever in chosen)}",
        stack=new.name,
        backend=", ".join(dict.fromkeys(lever.backend or _plain() for lever in chosen)),
        say=say,
    )
    notebook.facts["old"] = old.name
    notebook.facts["debts"] = [debt(lever, owner=owner, until=until) for lever in chosen]
    setting = _Setting(
        old=old,
        new=new,
        job=job,
        folder=folder,
        limits=limits or Limits(),
        notebook=notebook,
    )
    for lever in chosen:
        if lever.name == "stack":
            _pull_stack(setting, lever)
        else:
            _pull_backend(setting, lever)
    if not (owner and until):
        notebook.next.append("name who may pull the levers, and until when they may be needed")
    return notebook.record()


def _plain() -> str:
    """Return the backend that a job asks for here when no lever changes it."""
    return "nccl" if gpus() else "gloo"


# --- the old backend on the new stack -----------------------------------------------------------


def _pull_backend(setting: _Setting, lever: Lever) -> None:
    """The variable, or the spelling: the same stack, another class."""
    notebook, variables = setting.notebook, dict(lever.variables)
    pulled = Place(stack=setting.new, backend=lever.backend, variables=variables)
    found = setting.resolve(pulled, pulled, f"{lever.name} on every rank")
    prove_resolution(notebook, lever, found)
    partly = setting.resolve(
        pulled, Place(stack=setting.new, backend="nccl"), f"{lever.name} on rank 0 only"
    )
    fact, value = ("variable", "0") if lever.variables else ("spelling", lever.backend)
    prove_partly(notebook, lever, partly, fact, value)
    if not gpus():
        _not_run(notebook, lever, found)
        return
    prove_class(notebook, lever, found)
    _smoke_on_gpu(setting, lever)
    _hang_proof(setting, lever, setting.new, lever.backend, variables)


def _not_run(notebook: Notebook, lever: Lever, found: Resolutions) -> None:
    refusals = sorted({str(text) for text in found.values("refusal") if text})
    refused = f"; its builder refused: {refusals[0]}" if refusals else ""
    for what, wanted in (
        ("every rank builds the old class", OLD_BACKEND),
        ("the smoke test has the same losses", "those of the new backend"),
        ("the same checkpoint is read", "a resumed run that goes on with the same losses"),
        ("the same hang is found", f"a passed hang drill with {lever.what}"),
    ):
        more = refused if wanted == OLD_BACKEND else ""
        notebook.not_run(f"{lever.what}: {what}", f"{_NO_GPU}{more}", wanted)
    notebook.next.append(f"run the drill on a machine with a GPU: {lever.what}")


def _smoke_on_gpu(setting: _Setting, lever: Lever) -> None:
    """The same job on the new backend and with the lever; then from the same checkpoint."""
    variables, new = dict(lever.variables), setting.new
    checkpoint = setting.folder / f"{lever.name}-checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    saving = ("--checkpoint", str(checkpoint))
    default = setting.run(new, f"{lever.name} smoke without it", "nccl", {}, *saving)
    pulled = setting.run(new, f"{lever.name} smoke with it", lever.backend, variables)
    _prove_losses(setting.notebook, lever, pulled, default)
    whole = setting.run(new, f"{lever.name} whole", "nccl", {}, "--steps", str(2 * STEPS))
    resumed = setting.run(
        new, f"{lever.name} resumed", lever.backend, variables, *saving, "--resume"
    )
    _prove_resumed(setting.notebook, lever, resumed, whole)


def _prove_losses(notebook: Notebook, lever: Lever, pulled: JobRun, default: JobRun) -> None:
    difference = largest_difference(pulled.losses, default.losses)
    problem = pulled.problem or default.problem
    notebook.prove(
        f"{lever.what}: the smoke test has the same losses",
        False if pulled.problem else None if difference is None else difference <= ACROSS,
        seen=problem or _difference_text(difference),
        wanted=f"{STEPS} losses a rank, equal to {ACROSS:g} of their size",
    )


def _prove_resumed(notebook: Notebook, lever: Lever, resumed: JobRun, whole: JobRun) -> None:
    difference = largest_difference(resumed.losses, [losses[STEPS:] for losses in whole.losses])
    notebook.prove(
        f"{lever.what}: the same checkpoint is read",
        False if resumed.problem else None if difference is None else difference <= ACROSS,
        seen=resumed.problem or whole.problem or _difference_text(difference),
        wanted="a resumed run that goes on with the losses of an uninterrupted one",
    )


def _difference_text(difference: float | None) -> str:
    if difference is None:
        return "the runs have not the same number of losses"
    return "equal bit for bit" if difference == 0 else f"up to {difference:.1e} of their size apart"


def _hang_proof(
    setting: _Setting, lever: Lever, stack: Stack, backend: str, variables: Mapping[str, str]
) -> None:
    record = hang(
        stack,
        backend,
        folder=setting.folder / f"{lever.name}-hang",
        limits=setting.limits,
        say=setting.notebook.say,
        variables=variables,
        name=f"{setting.notebook.name}/hang",
        supervise=False,
    )
    setting.notebook.prove(
        f"{lever.what}: the same hang is found",
        record.verdict,
        seen=record.reason,
        wanted="a hang drill that passes",
        evidence=f"{lever.name}-hang",
    )
    setting.notebook.facts[f"{lever.name}_hang"] = record.model_dump(mode="json")


# --- the old stack ------------------------------------------------------------------------------


def _pull_stack(setting: _Setting, lever: Lever) -> None:
    """Everything back: what a CPU with gloo can prove in full."""
    old, new, notebook = setting.old, setting.new, setting.notebook
    backend = _plain()
    there = Place(stack=old, backend="nccl")
    found = setting.resolve(there, there, "stack on every rank")
    prove_resolution(notebook, lever, found)
    partly = setting.resolve(there, Place(stack=new, backend="nccl"), "stack on rank 0 only")
    version = next(iter(partly.values("torch")), None)
    prove_partly(notebook, lever, partly, "torch", version)
    checkpoint = setting.folder / "stack-checkpoint"
    readable = setting.folder / "stack-checkpoint-readable"
    for path in (checkpoint, readable):
        shutil.rmtree(path, ignore_errors=True)
    saving = ("--checkpoint", str(checkpoint))
    before = setting.run(new, "stack smoke on the new", backend, {}, *saving)
    after = setting.run(old, "stack smoke on the old", backend, {})
    _prove_stack(notebook, lever, after, old, backend)
    _prove_losses(notebook, lever, after, before)
    _prove_checkpoint(setting, lever, checkpoint, readable)
    _hang_proof(setting, lever, old, backend, {})


def _prove_stack(notebook: Notebook, lever: Lever, run: JobRun, old: Stack, backend: str) -> None:
    wanted = OLD_BACKEND if backend == "nccl" else "ProcessGroupGloo"
    torches = [(record.fingerprint.get("torch") or {}).get("version") for record in run.records]
    builds = [f"{torch}: {built}" for torch, built in zip(torches, run.classes, strict=True)]
    right = [str(torch).split("+")[0] == old.torch.split("+")[0] for torch in torches]
    notebook.prove(
        f"{lever.what}: every rank runs on it, and says what it has built",
        all(right) and set(run.classes) == {wanted} if len(right) == RANKS else None,
        seen=run.problem or "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(builds)),
        wanted=f"PyTorch {old.torch} and {wanted} on {RANKS} ranks",
        evidence="stack-smoke-on-the-old/rank-0.json",
    )


def _prove_checkpoint(setting: _Setting, lever: Lever, checkpoint: Path, readable: Path) -> None:
    """The newest checkpoint, saved by the new stack, must be read by the old one."""
    notebook, minor = setting.notebook, minor_of(setting.old)
    what = f"{lever.what}: the newest checkpoint is read, after a downgrade"
    wanted = f"a copy that PyTorch {minor} loads"
    if not checkpoint.is_dir():
        notebook.prove(what, None, seen="the new stack has saved none", wanted=wanted)
        return
    try:
        made = make_readable(checkpoint, readable, minor)
    except (CheckpointError, OSError) as error:
        notebook.prove(what, False, seen=str(error), wanted=wanted)
        return
    found = load_on(
        setting.old,
        readable,
        label="stack-checkpoint-load",
        folder=setting.folder,
        limit_s=setting.limits.job_s,
    )
    notebook.prove(
        what,
        None if not found.verdict else found.verdict == "pass",
        seen=f"{found.text}; strides dropped: {made['strides_dropped']}",
        wanted=wanted,
        evidence="stack-checkpoint-load.json",
    )
