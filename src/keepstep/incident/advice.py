"""What is left to do after an incident of `keepstep run`, which has dealt with the rank itself.

A diagnosis advises whoever has to act: replace the rank, take its stack, continue it. Where a
manifest says that the job went on, that is done, and what remains is to find the cause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from keepstep.diagnosis.evidence import Life
from keepstep.diagnosis.verdict import Verdict
from keepstep.incident.gather import Gathered
from keepstep.incident.manifest import STACKS, Manifest, RankFacts

# How the outcome begins where the rank has been fenced and the job goes on or waits for a spare.
_DEALT_WITH = ("generation ", "no spare was ready")
_CAUSES = {
    Life.DEAD: "find out what ended it: the job's output at that time, the kernel's log (dmesg) of "
    "its host, the limits of its memory",
    Life.STOPPED: "find out what stopped it on its host: a debugger, SIGSTOP, the freezer",
}
_HELD = "find out what held it: {stacks}"


def advised(gathered: Gathered, verdict: Verdict) -> Verdict:
    """Return the verdict with the next steps that are left to somebody who comes later."""
    if not gathered.manifests or not verdict.ranks:
        return verdict
    first = gathered.manifests[0]
    if not first.outcome.startswith(_DEALT_WITH):
        return verdict
    members = {member.rank: member for member in first.members}
    struck = {fault["rank"] for fault in first.faults}
    steps = [
        _what_is_left(first, members[rank], gathered)
        for rank in verdict.ranks
        if rank in members and rank in struck
    ]
    if len(steps) < len(verdict.ranks):
        return verdict  # it names somebody else than the run did: that is still to be acted on
    return replace(verdict, next_steps=tuple(steps))


def _what_is_left(manifest: Manifest, member: RankFacts, gathered: Gathered) -> str:
    cause = _CAUSES.get(Life(member.life))
    if cause is None:
        files = [
            each.file
            for each in gathered.arrivals
            if each.rank == member.rank and each.kind == STACKS and each.file
        ]
        where = f"its stack is in {Path(files[0]).name}" if files else "no stack of it was taken"
        cause = _HELD.format(stacks=where)
    return (
        f"keepstep run has dealt with rank {member.rank} already ({manifest.outcome}). "
        f"What is left: {cause}."
    )


def facts(manifest: Manifest) -> Iterator[str]:
    """Say when and where it was, whom it struck as the run saw it, and what became of the job."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.written))
    yield (
        f"{manifest.incident}: generation {manifest.generation}, step {manifest.step}, "
        f"backend {manifest.backend}, written {when}"
    )
    members = {member.rank: member for member in manifest.members}
    for fault in manifest.faults:
        member = members.get(fault["rank"])
        who = "no rank" if fault["rank"] is None else f"rank {fault['rank']}"
        if member is not None:
            who += f" (worker {member.worker}, pid {member.pid or 'unknown'}, on {member.host})"
        yield f"{fault['fault']} of {who}: {fault['evidence']}"
    yield f"outcome: {manifest.outcome or 'not known'}"
