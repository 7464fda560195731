"""What a rank left for a post-mortem, looked at as somebody would who needs it next week."""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from keepstep.canary.facts import Facts
from keepstep.drills.expected import Dump, Expectation
from keepstep.drills.notebook import Notebook
from keepstep.recorder import naming
from keepstep.recorder.delivery import check_recorder
from keepstep.recorder.disk import EPHEMERAL, observe
from keepstep.recorder.model import Backend, Severity
from keepstep.recorder.read import read_file

OPERATION = "all_reduce"  # that the ranks of the hang drill call

How = Literal["by itself", "asked"]


class Artifact(Facts):
    """One recorder dump of one rank; ``reason`` says why it cannot be used."""

    rank: int
    how: How
    path: str  # relative to the drill's folder
    arrived: bool
    owner: str = ""
    size: int = 0
    age_s: float = 0.0  # when it was looked at
    mount_point: str = ""
    file_system: str = ""
    survives: bool | None = None  # the container or the host's next start; None: not known
    operations: int = 0  # all-reduces in it
    last: str = ""  # the last one, such as all_reduce 4
    sha256: str = ""
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether it is there and says what its rank knew."""
        return self.arrived and not self.reason


class JobPlace(Facts):
    """Where a job with the same variables would write, and what would become of it."""

    path: str  # of rank 0
    mount_point: str
    file_system: str
    survives: bool
    overwritten: bool  # by the next run, which writes under the same name
    problems: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()


def look_at(
    path: Path, folder: Path, *, rank: int, how: How, operations: int, started: float
) -> Artifact:
    """Return what is true of the dump at ``path``.

    Args:
        path: Where it is due.
        folder: Of the drill.
        rank: Whose it is to be. A dump does not say it (pytorch/pytorch#117883): the name does, and
            the number of all-reduces that this rank has called.
        how: Who wrote it.
        operations: All-reduces that this rank has called, and so must be in it.
        started: When the run began (seconds since 1970); an older file is of another run.
    """
    name = str(path.relative_to(folder))
    try:
        status = path.lstat()
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        return Artifact(rank=rank, how=how, path=name, arrived=False, reason=reason)
    disk = observe(str(path))
    found, last, problem = _content(path)
    reason = problem or _wrong(status.st_mtime - started, status.st_uid, found, operations)
    return Artifact(
        rank=rank,
        how=how,
        path=name,
        arrived=True,
        owner=_user(status.st_uid),
        size=status.st_size,
        age_s=round(max(0.0, time.time() - status.st_mtime), 3),
        mount_point=disk.mount_point,
        file_system=disk.file_system,
        survives=disk.file_system not in EPHEMERAL if disk.file_system else None,
        operations=found,
        last=last,
        sha256=hashlib.sha256(data).hexdigest(),
        reason=reason,
    )


def _content(path: Path) -> tuple[int, str, str]:
    """Return how many all-reduces a dump holds, the last one, and why it cannot be read."""
    reading = read_file(path)
    if reading.dump is None:
        errors = [each for each in reading.findings if each.severity is Severity.ERROR]
        return 0, "", errors[0].text if errors else "no dump"
    # Those of the drill; a backend may note others of its own, such as a barrier.
    entries = [each for each in reading.dump.entries if each.operation.name == OPERATION]
    last = f"{OPERATION} {entries[-1].sequence}" if entries else ""
    return len(entries), last, ""


def _wrong(newer_s: float, owner: int, found: int, operations: int) -> str:
    """Return why a dump that can be read is not the one that was due; "" where it is."""
    if newer_s < 0:
        return f"it was written {-newer_s:.0f} s before the run"
    if owner != os.geteuid():
        return f"it belongs to {_user(owner)}"
    if not found:
        return f"no all-reduce is in it, its rank has called {operations}: nothing was recorded"
    if found != operations:
        return f"{found} all-reduces are in it, its rank has called {operations}: another rank's"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def compared(artifact: Artifact, digest: str) -> Artifact:
    """Return the artifact, of no use where its rank says that it wrote other bytes."""
    if artifact.sha256 == digest:
        return artifact
    return artifact.model_copy(update={"reason": "its rank wrote other bytes than these"})


def prove_artifacts(
    notebook: Notebook, artifacts: list[Artifact], expectation: Expectation, held: int
) -> None:
    """Compare what each rank left by itself with what is known, and what it left when asked."""
    for artifact in artifacts:
        if artifact.how == "asked":
            continue
        due = expectation.held if artifact.rank == held else expectation.waiting
        notebook.prove(
            f"rank {artifact.rank}'s dump, by itself",
            as_known(artifact, due),
            seen=_artifact_text(artifact, due),
            wanted=f"{due} ({expectation.source})",
            evidence=artifact.path if artifact.arrived else "",
        )
    by_itself = {each.rank: each for each in artifacts if each.how == "by itself"}
    for artifact in artifacts:
        if artifact.how == "by itself" or by_itself[artifact.rank].usable:
            continue
        if not expectation.records:
            notebook.prove(
                f"rank {artifact.rank}'s dump, when asked",
                not artifact.operations or artifact.usable,
                seen=f"nothing is in it: this backend has no recorder ({expectation.source})"
                if not artifact.operations
                else _artifact_text(artifact, Dump.ABSENT),
                wanted="nothing, or a dump of this rank and this run",
                evidence=artifact.path if artifact.arrived else "",
            )
            continue
        notebook.prove(
            f"rank {artifact.rank}'s dump, when asked",
            artifact.usable,
            seen=_artifact_text(artifact, Dump.WRITTEN),
            wanted="a dump of this rank and this run, that can be read",
            evidence=artifact.path if artifact.arrived else "",
            mend=expectation.way,
        )


def as_known(artifact: Artifact, due: Dump) -> bool | None:
    """Return whether what a rank left by itself is what is known; None where nothing is known.

    A dump that arrives although none was expected is as good as any; one that is there and cannot
    be used never is.
    """
    if artifact.arrived:
        return artifact.usable
    if due is Dump.UNKNOWN:
        return None
    return due is Dump.ABSENT


def _artifact_text(artifact: Artifact, due: Dump) -> str:
    if not artifact.arrived:
        known = " (expected absent)" if due is Dump.ABSENT else f": {artifact.reason}"
        return f"absent{known}"
    if artifact.reason:
        return f"there, and of no use: {artifact.reason}"
    news = ", though it was expected absent" if due is Dump.ABSENT else ""
    return (
        f"{artifact.size} bytes, {artifact.age_s:.1f} s old, of {artifact.owner}, "
        f"{artifact.operations} all-reduces, the last {artifact.last}{news}"
    )


def place_of_jobs(variables: Mapping[str, str], implementation: str) -> JobPlace:
    """Return where a rank with ``variables`` would write, as ``keepstep check-recorder`` judges.

    PyTorch ends the prefix with the number of the rank and nothing else: unless the prefix itself
    changes from run to run, the next run replaces the dump.
    """
    kind = Backend(implementation) if implementation in tuple(Backend) else Backend.UNKNOWN
    try:
        path = naming.effective_path(variables, 0, kind).path
    except naming.VariableError as error:
        return JobPlace(
            path="", mount_point="", file_system="", survives=False, overwritten=False,
            problems=(str(error),), mend=("correct or unset the variable",),
        )  # fmt: skip
    disk = observe(path.removesuffix("0"))
    problems = [
        each
        for each in check_recorder(
            variables,
            {"": range(1)},
            kind,
            disks={"": disk},
            silent_ranks_are_asked=True,
        )
        if each.severity is Severity.ERROR
    ]
    return JobPlace(
        path=path,
        mount_point=disk.mount_point,
        file_system=disk.file_system,
        survives=not problems,
        overwritten=not any(value in path for value in _runs(variables)),
        problems=tuple(each.text for each in problems),
        mend=tuple(each.mend for each in problems),
    )


def _runs(variables: Mapping[str, str]) -> list[str]:
    """Return what names the present run in its environment."""
    names = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOB_ID", "PBS_JOBID", "LSB_JOBID")
    return [value for name in names if len(value := variables.get(name, "")) > 3]
