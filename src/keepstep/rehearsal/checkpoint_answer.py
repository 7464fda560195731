"""The newest checkpoint that the old stack can read: of the user's runs, or of the rehearsal."""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.canary.verdict import Verdict
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.status import Status, find_status
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.testload import refusal
from keepstep.drills.record import DrillRecord
from keepstep.report.model import CheckpointAnswer


def checkpoint_answer(
    drills: Sequence[DrillRecord], *, old: str, root: str = ""
) -> CheckpointAnswer:
    """Answer for the folder of a run; without one, for what the restore drill saved.

    Args:
        drills: Of the rehearsal.
        old: Minor version of the old stack's PyTorch, such as 2.14.
        root: Folder or address of the checkpoints of a real run; "" for none.
    """
    question = f"Which is the newest checkpoint that PyTorch {old} can read?"
    if not root:
        return _of_the_drill(question, drills, old)
    try:
        return _of_a_run(question, find_status(open_store(root), old, refusal), old, root)
    except (CheckpointError, OSError) as error:
        return CheckpointAnswer(
            question=question,
            verdict=Verdict.INCONCLUSIVE,
            answer=f"not known: {error}",
            next=f"keepstep checkpoint status {root} --for {old}",
        )


def _of_a_run(question: str, status: Status, old: str, root: str) -> CheckpointAnswer:
    newest, readable = status.newest, status.newest_readable
    evidence = (
        f"{root}: {status.looked_at} of {status.steps} checkpoints were looked at, newest first",
        *(f"not judged: {each}" for each in status.unreadable),
        *(f"incomplete: {each}" for each in status.incomplete),
    )
    if newest is None or readable is None:
        return CheckpointAnswer(
            question=question,
            verdict=Verdict.FAIL,
            answer=f"none: {_named(newest.name) if newest else 'there is no complete checkpoint'}",
            evidence=evidence,
            next=f"keepstep checkpoint downgrade {root}/{newest.name if newest else 'STEP'} "
            f"--for {old}",
        )
    if not status.behind:
        text = f"{readable.name}, which is the newest of all"
        return CheckpointAnswer(
            question=question, verdict=Verdict.PASS, answer=text, evidence=evidence
        )
    return CheckpointAnswer(
        question=question,
        verdict=Verdict.FAIL,
        answer=f"{readable.name}, {status.behind} steps behind {newest.name}, the newest of all",
        evidence=evidence,
        next=f"keepstep checkpoint downgrade {root}/{newest.name} --for {old}",
    )


def _named(newest: str) -> str:
    return f"the newest, {newest}, is not readable, and neither is an older one"


def _of_the_drill(question: str, drills: Sequence[DrillRecord], old: str) -> CheckpointAnswer:
    restore = next((drill for drill in drills if drill.drill == "restore"), None)
    rows = restore.facts.get("directions", []) if restore else []
    loads = {
        row["checkpoint"]: str(row.get("verdict", ""))
        for row in rows
        if str(row.get("torch", "")).startswith(old) or row["checkpoint"] == "downgraded"
    }
    evidence = tuple(
        f"{row['checkpoint']} checkpoint, loaded with PyTorch {row.get('torch', '?')}: "
        f"{row.get('verdict', '?')}" + (f" ({row['error']})" if row.get("error") else "")
        for row in rows
    )
    verdict, answer = _said(loads, old)
    return CheckpointAnswer(
        question=question,
        verdict=verdict,
        answer=answer,
        evidence=evidence,
        next="for your own runs: keepstep rehearse --checkpoints ROOT, or "
        f"keepstep checkpoint status ROOT --for {old}",
    )


def _said(loads: dict[str, str], old: str) -> tuple[Verdict, str]:
    of_the_drill = "of the restore drill's checkpoints"
    if loads.get("post-upgrade") == "pass":
        return Verdict.PASS, f"the newest {of_the_drill}, as it was saved"
    if loads.get("downgraded") == "pass":
        return Verdict.PASS, (
            f"the newest {of_the_drill}, but only after keepstep checkpoint downgrade; as it was "
            f"saved after the upgrade, {old} refuses it"
        )
    if loads.get("pre-upgrade") == "pass":
        return Verdict.FAIL, f"only the one {of_the_drill} that was saved before the upgrade"
    if not loads:
        return Verdict.NOT_RUN, "not known: the restore drill was not run"
    return Verdict.FAIL, f"none {of_the_drill}"
