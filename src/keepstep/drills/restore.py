"""The restore drill: who reads whose checkpoint, and does training go on as if nothing happened?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from keepstep.drills.job_runs import ACROSS, JobRun, SavingJob, largest_difference, run_job
from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook, Say, quiet
from keepstep.drills.record import DrillRecord
from keepstep.drills.surroundings import minor_of
from keepstep.drills.test_loads import TestLoad, differing, load_on, make_readable
from keepstep.stack.named import Stack

STEPS = 4  # before the save, and again after it; the probe keeps the losses of ten
BEFORE, AFTER = 1, 0  # seeds of the runs before and after the upgrade: two runs, two states

_OLD, _NEW, _DOWNGRADED, _SWAPPED = "pre-upgrade", "post-upgrade", "downgraded", "swapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What one drill is about."""

    old: Stack
    new: Stack
    job: SavingJob
    folder: Path
    limits: Limits
    notebook: Notebook

    def run(self, stack: Stack, label: str, *arguments: str) -> JobRun:
        """Run the job on a stack."""
        self.notebook.say(f"{self.notebook.name}: {label}")
        run = run_job(
            stack,
            self.job,
            arguments,
            label=label,
            folder=self.folder / "runs" / label.replace(" ", "-"),
            limit_s=self.limits.job_s,
        )
        if run.records and run.records[0].fingerprint:
            self.notebook.fingerprints.setdefault(stack.name, run.records[0].fingerprint)
        return run

    def load(self, stack: Stack, which: str) -> TestLoad:
        """Load one of the checkpoints on a stack."""
        self.notebook.say(f"{self.notebook.name}: {stack.name} loads the {which} checkpoint")
        return load_on(
            stack,
            self.checkpoint(which),
            label=f"load-{which}-on-{stack.name}",
            folder=self.folder,
            limit_s=self.limits.job_s,
        )

    def checkpoint(self, which: str) -> Path:
        """Return where a checkpoint lies."""
        return self.folder / "checkpoints" / which


def restore(
    old: Stack,
    new: Stack,
    *,
    job: SavingJob,
    folder: Path,
    limits: Limits | None = None,
    say: Say = quiet,
    name: str = "",
) -> DrillRecord:
    """Save on both stacks, load every way round, and compare the losses of resumed runs.

    Proven is: the old stack reads what was saved before the upgrade, the new one reads both; what
    the old one cannot read it refuses with the error that is known, and reads with equal digests
    once ``keepstep checkpoint downgrade`` has made a copy for it; a resumed run has the losses of
    an uninterrupted one; and a checkpoint of another run in the place of ours is noticed.

    Args:
        old: The stack to go back to.
        new: The stack of the upgrade.
        job: What saves and resumes.
        folder: For the evidence; made when missing.
        limits: See there.
        say: Told of each proof.
        name: Of the record; default ``restore/JOB``.
    """
    folder = folder.resolve()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "checkpoints").mkdir(parents=True)
    notebook = Notebook(
        drill="restore",
        name=name or f"restore/{job.script.stem}",
        stack=new.name,
        backend="gloo",
        say=say,
    )
    notebook.facts["old"], notebook.facts["job"] = old.name, job.script.name
    setting = _Setting(
        old=old,
        new=new,
        job=job,
        folder=folder,
        limits=limits or Limits(),
        notebook=notebook,
    )
    saved = _save(setting)
    if saved is not None:
        _directions(setting)
        _resume(setting, *saved)
    return notebook.record()


# --- save ---------------------------------------------------------------------------------------


def _save(setting: _Setting) -> tuple[JobRun, JobRun] | None:
    """Save once on each stack; return an uninterrupted run of each. None: there is nothing."""
    runs = []
    for stack, which, seed in ((setting.old, _OLD, BEFORE), (setting.new, _NEW, AFTER)):
        place = str(setting.checkpoint(which))
        shown = ("--seed", str(seed), "--steps")
        run = setting.run(stack, f"{which} save", *shown, str(STEPS), "--checkpoint", place)
        setting.notebook.prove(
            f"a checkpoint was saved {'before' if which == _OLD else 'after'} the upgrade",
            not run.problem and setting.checkpoint(which).is_dir(),
            seen=run.problem or f"{STEPS} steps on {stack.name}, then a save",
            wanted="a run that ends well and leaves a checkpoint",
            fault=True,
        )
        runs.append(setting.run(stack, f"{which} uninterrupted", *shown, str(2 * STEPS)))
    there = all(setting.checkpoint(which).is_dir() for which in (_OLD, _NEW))
    return (runs[0], runs[1]) if there else None


# --- load ---------------------------------------------------------------------------------------


def _directions(setting: _Setting) -> None:
    """Load every way round; rows of a table, and a proof for each."""
    notebook, old, new = setting.notebook, setting.old, setting.new
    rows = []
    for stack, which in ((old, _OLD), (new, _OLD), (new, _NEW)):
        found = setting.load(stack, which)
        rows.append(_row(stack, which, found))
        _prove_load(notebook, f"{stack.name} reads the {which} checkpoint", found)
    kept = found  # what the new stack read of the checkpoint that it has saved: the reference
    back = setting.load(old, _NEW)
    rows.append(_row(old, _NEW, back))
    readable = _prove_refusal(notebook, setting, back)
    if not readable:
        rows.append(_downgrade(setting, kept))
    rows.append(_swap(setting, kept))
    notebook.facts["directions"] = rows


def _row(stack: Stack, which: str, found: TestLoad) -> dict[str, object]:
    return {
        "checkpoint": which,
        "loaded_by": stack.name,
        "torch": found.torch,
        "verdict": found.verdict or "inconclusive",
        "error": found.error,
        "entries": len(found.digests),
    }


def _prove_load(notebook: Notebook, what: str, found: TestLoad, wanted: str = "") -> bool:
    holds = None if found.verdict in ("", "inconclusive") else found.verdict == "pass"
    return notebook.prove(what, holds, seen=found.text, wanted=wanted or "a load without an error")


def _prove_refusal(notebook: Notebook, setting: _Setting, found: TestLoad) -> bool:
    """Compare what the old stack makes of the new checkpoint with what is known of its form."""
    minor = minor_of(setting.old)
    readers = find_readers(LocalStore(setting.checkpoint(_NEW)))
    known = readers.readers.get(minor)
    what = f"{setting.old.name} and the post-upgrade checkpoint: as known from its form"
    wanted = {True: "a load without an error", None: "either"}.get(known, "an error")
    said = next((note for note in readers.notes if "older versions fail" in note), "")
    expected_text = said.rpartition(": ")[2]
    if known is None or not found.verdict:
        notebook.prove(what, None, seen=found.text, wanted=wanted)
    elif known:
        _prove_load(notebook, what, found)
    else:
        refused = found.verdict == "fail" and expected_text in found.error
        notebook.prove(
            what,
            refused,
            seen=f"refused, as expected: {found.error}" if refused else found.text,
            wanted=f"an error: {expected_text or 'any'}",
        )
    return found.verdict == "pass"


def _downgrade(setting: _Setting, kept: TestLoad) -> dict[str, object]:
    """Make a copy that the old stack can read, and compare it entry by entry."""
    notebook, minor = setting.notebook, minor_of(setting.old)
    target = setting.checkpoint(_DOWNGRADED)
    what = f"{setting.old.name} reads the downgraded copy, every entry with an equal digest"
    try:
        made = make_readable(setting.checkpoint(_NEW), target, minor)
    except (CheckpointError, OSError) as error:
        notebook.prove(what, False, seen=str(error), wanted="a copy for the old stack")
        return {"checkpoint": _DOWNGRADED, "loaded_by": setting.old.name, "error": str(error)}
    notebook.facts["downgrade"] = {
        "command": f"keepstep checkpoint downgrade {_NEW} {_DOWNGRADED} --for {minor}",
        **made,
    }
    found = setting.load(setting.old, _DOWNGRADED)
    different = differing(kept, found)
    holds = None if not found.verdict else found.verdict == "pass" and not different
    notebook.prove(
        what,
        holds,
        seen=found.text
        + (f"; {len(different)} digests differ: {different[0]}" if different else ""),
        wanted=f"the {len(kept.digests)} digests that {setting.new.name} read",
    )
    return _row(setting.old, _DOWNGRADED, found)


def _swap(setting: _Setting, kept: TestLoad) -> dict[str, object]:
    """Put a checkpoint of another run where ours was: its names and shapes are the same."""
    shutil.copytree(setting.checkpoint(_OLD), setting.checkpoint(_SWAPPED))
    found = setting.load(setting.new, _SWAPPED)
    different = differing(kept, found)
    same_names = kept.digests.keys() == found.digests.keys()
    setting.notebook.prove(
        "another run's checkpoint in the place of ours is noticed",
        None if not found.digests else bool(different),
        seen=f"{len(different)} of {len(kept.digests)} digests differ"
        + (", names and number of entries do not" if same_names else ""),
        wanted="digests that differ from those on record",
    )
    return _row(setting.new, _SWAPPED, found)


# --- resume -------------------------------------------------------------------------------------


def _resume(setting: _Setting, before: JobRun, after: JobRun) -> None:
    """Resume on both stacks, and compare with the runs that were never interrupted."""
    readable = setting.checkpoint(_DOWNGRADED).is_dir()
    back = _DOWNGRADED if readable else _NEW
    legs: Sequence[tuple[Stack, str, JobRun, int]] = (
        (setting.new, _OLD, before, BEFORE),
        (setting.new, _NEW, after, AFTER),
        (setting.old, back, after, AFTER),
    )
    rows = []
    for stack, which, whole, seed in legs:
        work = setting.folder / "checkpoints" / f"{which}-resumed-on-{stack.name}"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(setting.checkpoint(which), work)  # the job saves there when it ends
        run = setting.run(
            stack,
            f"{which} resumed on {stack.name}",
            *("--seed", str(seed), "--steps", str(STEPS), "--checkpoint", str(work), "--resume"),
        )
        shutil.rmtree(work)
        same_stack = (stack, which) == (setting.new, _NEW)
        rows.append(_prove_continues(setting.notebook, run, whole, exact=same_stack))
    setting.notebook.facts["resumed"] = rows


def _prove_continues(
    notebook: Notebook, run: JobRun, whole: JobRun, *, exact: bool
) -> dict[str, object]:
    rest = tuple(losses[STEPS:] for losses in whole.losses)
    difference = largest_difference(run.losses, rest)
    problem = run.problem or whole.problem
    allowed = 0.0 if exact else ACROSS
    holds = None if problem or difference is None else difference <= allowed
    notebook.prove(
        f"{run.label}: the losses go on as if never interrupted",
        False if run.problem else holds,
        seen=problem or _difference_text(difference),
        wanted="equal bit for bit" if exact else f"equal to {ACROSS:g} of their size",
    )
    return {
        "run": run.label,
        "largest_difference": difference,
        "losses": [list(each) for each in run.losses],
        "uninterrupted": [list(each) for each in rest],
    }


def _difference_text(difference: float | None) -> str:
    if difference is None:
        return "the runs have not the same number of losses"
    return "equal bit for bit" if difference == 0 else f"up to {difference:.1e} of their size apart"
