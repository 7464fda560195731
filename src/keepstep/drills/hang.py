"""The hang drill: a rank is held before a collective. Who leaves what, and is the rank named?"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.verdict import Outcome
from keepstep.drills.artifacts import (
    Artifact,
    compared,
    look_at,
    place_of_jobs,
    prove_artifacts,
)
from keepstep.drills.expected import CLASSES, Dump, Expectation, expected, implementation
from keepstep.drills.held_ranks import ASKED, OWN, WARM_UP, Observed, run_held
from keepstep.drills.injection import held_name, prove_injection
from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook, Say, quiet
from keepstep.drills.record import DrillRecord
from keepstep.drills.supervised import STEPPING, run_supervised, why_not
from keepstep.drills.surroundings import base_variables, gpus, minor_of, needs_gpu
from keepstep.incident.gather import gather
from keepstep.stack.named import Stack

WORLD_SIZE, HELD = 3, 1

_NAMED = "the diagnosis names the held rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What one drill is about."""

    stack: Stack
    backend: str
    folder: Path
    limits: Limits
    variables: Mapping[str, str]  # of every rank, besides the stack's
    implementation: str  # what the spelling builds
    expectation: Expectation


def hang(
    stack: Stack,
    backend: str,
    *,
    folder: Path,
    limits: Limits | None = None,
    say: Say = quiet,
    variables: Mapping[str, str] | None = None,
    name: str = "",
    supervise: bool = True,
) -> DrillRecord:
    """Hold a rank before a collective, let the timeout fire, and check what every rank left.

    Proven is, in this order: that the rank was held and the others waited, that it was still held
    when the timeout had fired, what each rank wrote by itself and when asked, that the diagnosis
    names the rank, and that nothing is left running.

    Args:
        stack: Where to run.
        backend: The spelling that the job passes on, such as gloo or nccl.
        folder: For the evidence; made when missing.
        limits: See there.
        say: Told of each proof.
        variables: More variables of every rank, such as ``{"TORCH_DIST_USE_NCCL2": "0"}``.
        name: Of the record; default ``hang/STACK/BACKEND``.
        supervise: Where ``keepstep run`` can run the stack, show that its incident names the rank.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    more = dict(variables or {})
    of_ranks = {**base_variables(stack), **more}
    setting = _Setting(
        stack=stack,
        backend=backend,
        folder=folder,
        limits=limits or Limits(),
        variables=more,
        implementation=implementation(backend, minor_of(stack), of_ranks),
        expectation=expected(backend, minor_of(stack), of_ranks),
    )
    notebook = Notebook(
        drill="hang",
        name=name or f"hang/{stack.name}/{backend}",
        stack=stack.name,
        backend=backend,
        say=say,
    )
    notebook.facts["implementation"] = setting.implementation
    notebook.facts["expected"] = asdict(setting.expectation)
    if needs_gpu(backend) and not gpus():
        _not_run(notebook, setting)
        return notebook.record()
    _drill(notebook, setting)
    _place(notebook, setting, of_ranks)
    if supervise and backend == "gloo":
        _under_run(notebook, setting)
    return notebook.record()


def _not_run(notebook: Notebook, setting: _Setting) -> None:
    why = f"{setting.backend} needs an NVIDIA GPU, this machine has none"
    notebook.not_run(held_name(HELD), why, "a rank that stays before the collective")
    notebook.not_run("each rank's recorder dump is as known", why, setting.expectation.source)
    notebook.not_run(_NAMED, why, f"rank {HELD}")
    notebook.next.append(f"run the drill on a machine with a GPU: backend {setting.backend}")


def _drill(notebook: Notebook, setting: _Setting) -> None:
    notebook.say(f"{notebook.name}: {WORLD_SIZE} ranks start, rank {HELD} will be held")
    observed = run_held(
        setting.stack,
        setting.backend,
        folder=setting.folder,
        limits=setting.limits,
        held=HELD,
        world_size=WORLD_SIZE,
        variables=lambda _: setting.variables,
    )
    notebook.fingerprints[setting.stack.name] = _fingerprint(observed)
    notebook.facts["seconds"] = _seconds(observed)
    prove_injection(notebook, observed, setting.limits, setting.expectation)
    _prove_class(notebook, setting, observed)
    artifacts = _artifacts(setting, observed)
    notebook.facts["artifacts"] = [each.model_dump() for each in artifacts]
    prove_artifacts(notebook, artifacts, setting.expectation, observed.held)
    _diagnose(notebook, setting, artifacts)
    notebook.prove(
        "nothing is left running",
        not observed.left_over,
        seen=", ".join(observed.left_over) or "no process of the drill",
        wanted="no process of the drill",
    )


def _seconds(observed: Observed) -> dict[str, object]:
    """Return when each rank left its own dump and ended, counted from the first that entered."""
    entered = [observed.first(rank, "entered") for rank in observed.waiting]
    began = min((float(line["at"]) for line in entered if line), default=None)
    if began is None:
        return {}
    return {
        str(rank): {
            "dump": _since(began, observed.dump_s.get(rank)),
            "end": _since(began, observed.end_s.get(rank)),
            "exit_code": observed.ends.get(rank),
        }
        for rank in range(observed.world_size)
    }


def _since(began: float, moment: float | None) -> float | None:
    return None if moment is None else round(moment - began, 3)


def _prove_class(notebook: Notebook, setting: _Setting, observed: Observed) -> None:
    """What is expected of a backend holds for the class that was built, not for the name."""
    said = [observed.first(rank, "grouped") for rank in range(observed.world_size)]
    built = ["nothing" if line is None else str(line["built"]) for line in said]
    wanted = CLASSES.get(setting.implementation)
    notebook.prove(
        "every rank has built the class that is known",
        None if wanted is None or "nothing" in built else set(built) == {wanted},
        seen=built[0] if len(set(built)) == 1 else ", ".join(built),
        wanted=wanted or "a class of which anything is known",
    )


def _fingerprint(observed: Observed) -> dict[str, object]:
    """Return what the ranks said of themselves, the values that differ by rank among it."""
    found: dict[str, object] = {}
    for key, fact in (("torch", "imported"), ("git", "imported"), ("built", "grouped")):
        lines = [observed.first(rank, fact) for rank in range(observed.world_size)]
        values = [None if line is None else line[key] for line in lines]
        found[key] = values[0] if len(set(values)) == 1 else values
    return found


# --- what is left? ------------------------------------------------------------------------------


def _artifacts(setting: _Setting, observed: Observed) -> list[Artifact]:
    found = []
    for rank in range(observed.world_size):
        called = WARM_UP + (rank != observed.held)
        for how, folder in (("by itself", OWN), ("asked", ASKED)):
            artifact = look_at(
                setting.folder / folder / f"trace_rank_{rank}",
                setting.folder,
                rank=rank,
                how="asked" if how == "asked" else "by itself",
                operations=called,
                started=observed.started,
            )
            said = observed.first(rank, "dumped", "not dumped")
            if how == "asked" and said is not None and artifact.usable:
                artifact = compared(artifact, str(said.get("sha256", "")))
            elif how == "asked" and said is not None and not artifact.arrived:
                artifact = artifact.model_copy(update={"reason": str(said.get("error", "lost"))})
            found.append(artifact)
    return found


def _diagnose(notebook: Notebook, setting: _Setting, artifacts: list[Artifact]) -> None:
    usable = [each for each in artifacts if each.usable]
    if not usable and not setting.expectation.records:
        notebook.prove(
            "nothing to diagnose, as is known of this backend",
            True,
            seen=f"a rank that hangs cannot be named: {setting.expectation.source}",
            wanted="no dump",
            mend=setting.expectation.way,
        )
        return
    own = [each for each in usable if each.how == "by itself"]
    if own:
        said, named = diagnosis_of(setting.folder, own, "diagnosed-own")
        notebook.prove(
            f"{_NAMED}, from what arrived by itself", named, seen=said, wanted=f"rank {HELD}"
        )
    best = {each.rank: each for each in sorted(usable, key=lambda each: each.how == "by itself")}
    said, named = diagnosis_of(setting.folder, list(best.values()), "diagnosed")
    notebook.prove(
        _NAMED,
        named,
        seen=said,
        wanted=f"rank {HELD}",
        evidence="diagnosed",
        mend=f"keepstep explain {setting.folder / 'diagnosed'}",
    )


def diagnosis_of(folder: Path, artifacts: list[Artifact], name: str) -> tuple[str, bool]:
    """Return what ``keepstep explain`` says of these dumps, and whether it names the held rank."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for artifact in artifacts:
        shutil.copy2(folder / artifact.path, place / f"trace_rank_{artifact.rank}")
    if not artifacts:
        return "no dump to diagnose", False
    verdict = diagnose(gather(place)[0].evidence)
    named = verdict.outcome is Outcome.CULPRIT and verdict.ranks == (HELD,)
    return f"{verdict.headline or verdict.outcome} ({verdict.confidence} confidence)", named


# --- would it be there next week? ---------------------------------------------------------------


def _place(notebook: Notebook, setting: _Setting, variables: Mapping[str, str]) -> None:
    """Say where a job's dumps would go. A backend that writes none has nothing to lose there."""
    place = place_of_jobs(variables, setting.implementation)
    notebook.facts["jobs_write_to"] = place.model_dump()
    if setting.expectation.waiting is Dump.ABSENT and setting.expectation.held is Dump.ABSENT:
        return
    notebook.prove(
        "a job's dump would survive it",
        place.survives,
        seen=f"{place.path} on {place.file_system or 'an unknown file system'}"
        + "".join(f"; {each}" for each in place.problems),
        wanted="a directory that can be written and outlives the container",
        mend="; ".join(place.mend),
    )


# --- how it is got without asking by hand -------------------------------------------------------


def _under_run(notebook: Notebook, setting: _Setting) -> None:
    """Show that the incident of ``keepstep run`` names a rank that hangs, where it can run."""
    if why := why_not(setting.stack):
        notebook.facts["keepstep_run"] = why
        return
    what = "keepstep run: its incident names the rank that hangs"
    notebook.say(f"{notebook.name}: the same hang under keepstep run")
    run = run_supervised(
        setting.stack,
        [str(STEPPING), "--steps", "12"],
        folder=setting.folder / "supervised",
        faults=[f"hang@6:{HELD}"],
        limit_s=setting.limits.job_s,
    )
    verdicts = run.of_kind("verdict")
    named = any(each.get("ranks") == [HELD] for each in verdicts)
    happened = bool(run.summary.get("injections_fired"))
    text = "; ".join(str(each.get("headline")) for each in verdicts) or "no verdict"
    notebook.prove(
        what,
        named and not run.problem and not run.left_over if happened else None,
        seen=run.problem
        or "; ".join(run.left_over)
        or (text if happened else "the hang was never injected"),
        wanted=f"rank {HELD}",
        evidence="supervised/events.jsonl",
    )
    notebook.facts["keepstep_run"] = {
        "verdicts": [str(each.get("headline")) for each in verdicts],
        "recoveries": run.summary.get("recoveries", []),
    }
