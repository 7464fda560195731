"""The replace drill: a rank is killed under ``keepstep run`` and a spare takes its place."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook, Say, quiet
from keepstep.drills.record import DrillRecord
from keepstep.drills.supervised import STEPPING, Supervised, run_supervised, why_not
from keepstep.stack.named import Stack

KILLED = 1  # the rank
STEPS, AT = 24, 12
SOON_S = 10.0  # from the loss to the next step; it takes 0.1 to 0.4 s on two cores

_KILLED = f"rank {KILLED} was killed"


def replace(
    new: Stack,
    *,
    folder: Path,
    job: Sequence[str] = (),
    limits: Limits | None = None,
    say: Say = quiet,
    name: str = "",
) -> DrillRecord:
    """Kill a rank of a job under ``keepstep run`` and compare its end with an undisturbed run.

    Proven is that the signal struck, that a spare took the rank, that the final state of both runs
    has the same SHA-256, that no sample was lost or repeated, and how soon the next step was done.

    Args:
        new: The stack in whose interpreter the ranks run.
        folder: For the evidence; made when missing.
        job: Script and arguments, for at least 24 steps that use the Python API of keepstep;
            default: a small job of ours.
        limits: See there.
        say: Told of each proof.
        name: Of the record; default ``replace/STACK/gloo``.
    """
    folder, limits = folder.resolve(), limits or Limits()
    notebook = Notebook(
        drill="replace",
        name=name or f"replace/{new.name}/gloo",
        stack=new.name,
        backend="gloo",
        say=say,
    )
    if why := why_not(new):
        notebook.not_run(_KILLED, why, "a stack with PyTorch 2.15 or newer")
        return notebook.record()
    command = list(job) or [str(STEPPING), "--steps", str(STEPS)]
    notebook.facts["job"] = [Path(command[0]).name, *command[1:]]
    runs = {}
    for label, faults in (("undisturbed", []), ("killed", [f"kill@{AT}:{KILLED}"])):
        notebook.say(f"{notebook.name}: the job under keepstep run, {label}")
        runs[label] = run_supervised(
            new, command, folder=folder / label, faults=faults, limit_s=limits.job_s
        )
    prove(notebook, runs["undisturbed"], runs["killed"], new)
    return notebook.record()


def prove(notebook: Notebook, undisturbed: Supervised, killed: Supervised, new: Stack) -> None:
    """Write down what the two runs show."""
    _prove_kill(notebook, killed)
    _prove_stack(notebook, (undisturbed, killed), new)
    _prove_takeover(notebook, killed)
    _prove_state(notebook, undisturbed, killed)
    _prove_soon(notebook, killed)
    left = [*undisturbed.left_over, *killed.left_over]
    notebook.prove(
        "nothing is left running",
        undisturbed.ended and killed.ended and not left,
        seen=", ".join(left) or undisturbed.problem or killed.problem or "no process of the runs",
        wanted="no process of the runs",
    )


def _prove_kill(notebook: Notebook, killed: Supervised) -> None:
    injected = [event for event in killed.of_kind("fault_injected") if event["rank"] == KILLED]
    pid = injected[0]["pid"] if injected else None
    exits = [event for event in killed.of_kind("worker_exited") if event["rank"] == KILLED]
    died = bool(exits) and exits[0]["code"] == -signal.SIGKILL and not exits[0].get("fenced")
    same = bool(exits and injected) and exits[0]["worker"] == injected[0]["worker"]
    notebook.prove(
        _KILLED,
        died and same,
        seen=f"process {pid} ended by SIGKILL during step {exits[0]['step']}"
        if died and same
        else killed.problem or f"injected: {bool(injected)}, its exit: {exits or 'none'}",
        wanted="the injection announced, and the kernel's word that SIGKILL ended that process",
        evidence="killed/events.jsonl",
        fault=True,
    )


def _prove_stack(notebook: Notebook, runs: Sequence[Supervised], new: Stack) -> None:
    """The workers themselves say which PyTorch they have."""
    versions = sorted(
        {str(event["torch"]) for run in runs for event in run.of_kind("worker_joined")}
    )
    notebook.fingerprints[new.name] = {"torch": versions[0] if len(versions) == 1 else versions}
    notebook.prove(
        "the ranks ran on the new stack",
        len(versions) == 1 and versions[0].split("+")[0] == new.torch.split("+")[0],
        seen=", ".join(versions) or "no worker joined",
        wanted=new.torch,
        evidence="killed/events.jsonl",
    )


def _prove_takeover(notebook: Notebook, killed: Supervised) -> None:
    recoveries = killed.summary.get("recoveries", [])
    ours = [each for each in recoveries if each["rank"] == KILLED and each["fault"] == "kill"]
    replaced = [event.get("replaced", []) for event in killed.of_kind("resumed")]
    spares = [
        event["worker"] for event in killed.of_kind("worker_joined") if event.get("rank") is None
    ]
    taken = [new for pairs in replaced for _, new in pairs]
    notebook.prove(
        "a spare took its place",
        len(recoveries) == 1 and len(ours) == 1 and bool(taken) and set(taken) <= set(spares),
        seen=f"worker {taken[0]} has the rank; action {ours[0]['action']}"
        if ours and taken
        else killed.problem or f"{len(recoveries)} recoveries, none of this kill",
        wanted="one recovery, by a worker that was a spare",
        evidence="killed/summary.json",
    )


def _prove_state(notebook: Notebook, undisturbed: Supervised, killed: Supervised) -> None:
    digests = [run.summary.get("state_sha256") or "" for run in (undisturbed, killed)]
    both = all(digests) and not undisturbed.problem and not killed.problem
    notebook.prove(
        "the run ends bit-identical to the undisturbed one",
        digests[0] == digests[1] if both else None,
        seen=" and ".join(digest[:16] or "none" for digest in digests)
        + "".join(f"; {run.problem}" for run in (undisturbed, killed) if run.problem),
        wanted="the same SHA-256 of the final state",
        evidence="killed/summary.json",
    )
    counts = [killed.summary.get(name) for name in ("samples_lost", "samples_repeated")]
    notebook.prove(
        "no sample was lost or used twice",
        None if None in counts else counts == [0, 0],
        seen=f"{counts[0]} lost, {counts[1]} repeated",
        wanted="0 and 0",
        evidence="killed/summary.json",
    )


def _prove_soon(notebook: Notebook, killed: Supervised) -> None:
    recoveries = killed.summary.get("recoveries", [])
    after = [each["next_step_after_s"] for each in recoveries]
    found = after[0] if after else None
    notebook.facts["next_step_after_s"] = found
    notebook.facts["recoveries"] = recoveries
    notebook.facts["median_step_s"] = killed.summary.get("median_step_s")
    notebook.prove(
        "the next step was done soon",
        None if found is None else found <= SOON_S,
        seen="never" if found is None else f"{found:.2f} s after the loss",
        wanted=f"within {SOON_S:g} s",
        evidence="killed/summary.json",
    )
