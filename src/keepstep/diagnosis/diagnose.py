"""From evidence to a verdict: the order in which explanations are tried, and the answer in words.

A rank that did not come, a device that did not finish and arguments that do not fit are facts of
the dumps and come first. A loop comes next. A collective that everybody entered and nobody
finished is blamed on its members only where others wait behind it.
"""

from __future__ import annotations

from dataclasses import replace

from keepstep.diagnosis import words
from keepstep.diagnosis.absence import blame_absent
from keepstep.diagnosis.beliefs import list_beliefs, list_victims
from keepstep.diagnosis.case import Blame, Case, open_case
from keepstep.diagnosis.devices import blame_device, blame_full
from keepstep.diagnosis.disagreement import blame_mismatches
from keepstep.diagnosis.ends import find_ends
from keepstep.diagnosis.evidence import Evidence, Life
from keepstep.diagnosis.frontier import find_frontier
from keepstep.diagnosis.groups import all_ranks
from keepstep.diagnosis.movement import moved_ranks
from keepstep.diagnosis.observed import (
    behind_in_counts,
    diagnose_lives,
    diagnose_observations,
    diagnose_raised,
    few_dead,
    sentences,
)
from keepstep.diagnosis.order import blame_loops
from keepstep.diagnosis.recorders import one_each
from keepstep.diagnosis.stacks import Waiting, kind_of_wait
from keepstep.diagnosis.standstill import everybody_inside, job_moves, nothing_pending
from keepstep.diagnosis.verdict import Confidence, Fault, Outcome, Verdict
from keepstep.diagnosis.waits import Lack
from keepstep.recorder.model import Dump, Severity

SURENESS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
LONG_TIMEOUT_MS = 600_000  # torch's default for NCCL (10 minutes): a checkpoint should fit into it


def diagnose(evidence: Evidence) -> Verdict:
    """Name the rank to blame for a hang, or say that none is, and why.

    The same evidence gives the same verdict, whatever the order of its dumps.
    """
    dumps, notes = one_each(evidence.dumps)
    if not any(dump.entries for dump in dumps.values()):
        return diagnose_observations(evidence)  # nobody recorded anything: that proves nothing
    known = all_ranks(dumps, evidence.observations)
    everyone = known if evidence.expected_ranks is None else evidence.expected_ranks | set(dumps)
    frontier = find_frontier(dumps, everyone)
    case = open_case(evidence, frontier)
    verdict = judge(case)
    verdict = replace(
        verdict,
        evidence=(*verdict.evidence, *notes, *frontier.notes, *_about_files(case, verdict)),
        beliefs=list_beliefs(case),
        victims=list_victims(case, frozenset(verdict.ranks)),
    )
    return _compare_with_earlier(evidence, dumps, verdict)


def judge(case: Case) -> Verdict:
    """Try the explanations in their order."""
    raised = diagnose_raised(case.evidence)
    if raised is not None:
        return raised
    if not case.waits.meetings:
        # gloo shows an operation that failed as one that finished: after the loss of a rank its
        # dumps say that nobody waits.
        return diagnose_lives(case.evidence) or nothing_pending(case)
    found = find_ends(case)
    blames = [
        *blame_mismatches(case, found),
        *blame_device(case, found),
        *blame_absent(case, found),
    ]
    dead = few_dead(case.evidence)
    if dead:  # whoever lives was merely on its way when the others were asked
        blames = [blame for blame in blames if blame.ranks and dead.issuperset(blame.ranks)]
        by_life = diagnose_lives(case.evidence)
        if by_life is not None and not blames:
            return by_life
    loops: list[str] = []
    if not blames:
        blames, loops = blame_loops(case, found)
    if not blames and not loops and not job_moves(case, found):
        full = blame_full(case, found)
        if full is not None:
            blames = [full]
    if blames:
        return _accuse(case, blames)
    if loops:
        return Verdict(
            outcome=Outcome.NO_RANK,
            fault=Fault.DEADLOCK,
            confidence=Confidence.HIGH,
            headline="deadlock: ranks wait for each other in a circle, and no single one is at"
            " fault",
            evidence=tuple(loops),
            next_steps=(
                "Compare the order in which the named ranks call collectives of these groups; all"
                " members of two groups must use them in one order.",
            ),
        )
    return everybody_inside(case, found)


def _accuse(case: Case, blames: list[Blame]) -> Verdict:
    blames = sorted(blames, key=lambda blame: (blame.ranks, blame.step))
    faults = sorted({(rank, blame.fault) for blame in blames for rank in blame.ranks})
    ranks = tuple(sorted({rank for rank, _ in faults}))
    kinds = {fault for _, fault in faults}
    evidence: list[str] = []
    for blame in blames:
        evidence += blame.evidence
    behind = behind_in_counts(case.evidence.observations)
    for rank in ranks:
        evidence += sentences(rank, case.evidence.observations.get(rank))
        if rank in behind:
            evidence.append(behind[rank])
    guilty = set(ranks)
    waiting = {rank for b in blames for rank in b.waiting} - guilty
    behind_them = sorted(set(case.waits.of) - guilty - waiting)
    if ranks and behind_them and not any(blame.would_decide for blame in blames):
        wait = words.verb(behind_them, "waits", "wait")
        evidence.append(_sentence(f"{words.ranks(behind_them)} {wait} for those that wait"))
    headline = "; ".join(_headline(blame, guilty) for blame in blames)
    verdict = Verdict(
        outcome=Outcome.CULPRIT if ranks else Outcome.UNKNOWN,
        ranks=ranks,
        fault=blames[0].fault if len(kinds) == 1 else _first_fault(blames),
        faults=tuple(faults),
        confidence=min((blame.confidence for blame in blames), key=SURENESS.index),
        headline=headline,
        evidence=tuple(dict.fromkeys(evidence)),
        would_decide=tuple(dict.fromkeys(line for b in blames for line in b.would_decide)),
        next_steps=tuple(dict.fromkeys(_next_step(case, b) for b in blames if b.ranks)),
    )
    return _too_short_a_timeout(case, blames, verdict)


def _first_fault(blames: list[Blame]) -> Fault:
    return max(
        blames, key=lambda blame: (SURENESS.index(blame.confidence), len(blame.waiting))
    ).fault


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _headline(blame: Blame, guilty: set[int]) -> str:
    suspects = " or ".join(f"rank {rank}" for rank in blame.ranks)
    together = blame.would_decide and blame.fault is not Fault.MISMATCH
    if not blame.ranks:
        return blame.what
    who = suspects if together and len(blame.ranks) > 1 else words.ranks(blame.ranks)
    text = f"{who} {blame.what}"
    waiting = [rank for rank in blame.waiting if rank not in guilty]
    if waiting and blame.fault is not Fault.EXTRA_COLLECTIVE:
        wait = words.verb(waiting, "waits", "wait")
        text += f"; {words.ranks(waiting)} {wait} for " + (
            "it" if len(blame.ranks) == 1 else "them"
        )
    return text


def _next_step(case: Case, blame: Blame) -> str:
    who = words.ranks(blame.ranks)
    lives = {case.life(rank) for rank in blame.ranks}
    if blame.fault is Fault.DEAD:
        return f"Read the end of the log of {who}, then replace {who}."
    if blame.fault is Fault.DEVICE:
        return (
            f"Look for device errors (Xid, ECC, link errors) on the host of {who}; take the device"
            " out if there are any."
        )
    if blame.fault is Fault.MISMATCH:
        return f"Compare the call of {who} with that of the others; check the inputs of {who}."
    if blame.fault is Fault.EXTRA_COLLECTIVE:
        return f"Look for a collective that only {who} reaches, as under `if rank == 0`."
    if blame.fault is Fault.UNEVEN_INPUTS:
        return "Give every rank equally many batches, or join uneven inputs (torch's Join)."
    if Life.STOPPED in lives:
        return f"Find out what stopped {who} (a debugger, SIGSTOP, the freezer), then continue it."
    return f"Take the stack of {who} (py-spy dump, gdb), then restart or replace {who}."


def _too_short_a_timeout(case: Case, blames: list[Blame], verdict: Verdict) -> Verdict:
    """A rank that writes a checkpoint for longer than a short timeout is slow, not hung."""
    if not verdict.ranks:
        return verdict
    for blame in blames:
        meeting = case.waits.meetings[blame.step]
        timeouts = [e.timeout_ms for e in meeting.waiting.values() if e and e.timeout_ms]
        short = bool(timeouts) and max(timeouts) < LONG_TIMEOUT_MS
        for rank in blame.ranks:
            seen = case.evidence.observations.get(rank)
            if seen is None or seen.life in (Life.DEAD, Life.STOPPED, Life.CLEAN_EXIT):
                return verdict
            if not short or kind_of_wait(seen.stack) is not Waiting.CHECKPOINT:
                return verdict
    seconds = max(
        (e.timeout_ms or 0) // 1000
        for blame in blames
        for e in case.waits.meetings[blame.step].waiting.values()
        if e is not None
    )
    return replace(
        verdict,
        outcome=Outcome.SLOW,
        confidence=Confidence.MEDIUM,
        headline=f"{words.ranks(verdict.ranks)} still reads or writes a checkpoint; the timeout of"
        f" {seconds} s is too short for it: {verdict.headline}",
        next_steps=("Give the group of this collective a longer timeout.",),
    )


def _about_files(case: Case, verdict: Verdict) -> list[str]:
    """What the absence of dumps means, as far as the verdict does not say so."""
    silent = sorted(case.frontier.everyone - set(case.frontier.dumps))
    broken = [f for f in case.evidence.findings if f.severity is Severity.ERROR]
    unread = [f"{f.path} could not be used: {f.text}" for f in broken]
    if not silent:
        return unread
    needed = {r for m in case.waits.meetings.values() for r in m.lacking(Lack.SILENT)}
    told = [rank for rank in silent if f"Rank {rank} left no dump" in " ".join(verdict.evidence)]
    untold = [rank for rank in silent if rank not in told]
    lines = [*unread, *([f"No dump of {words.ranks(untold)}."] if untold else [])]
    backends = {standing.backend for standing in case.frontier.standings.values()}
    if needed and any(backend.startswith("nccl2") for backend in backends):
        lines.append(
            "With nccl2 only ranks that detect a failure write a dump: a missing one fits a rank"
            " that waits for nobody."
        )
    return lines


def _compare_with_earlier(evidence: Evidence, dumps: dict[int, Dump], verdict: Verdict) -> Verdict:
    """With an earlier set of dumps: slow if anything moved."""
    if not evidence.earlier or verdict.outcome is Outcome.HEALTHY:
        return verdict
    earlier, _ = one_each(evidence.earlier)
    moved = moved_ranks(earlier, dumps)
    if not moved:
        line = "Nothing moved between the two sets of dumps: it is hung, not slow."
        return replace(verdict, evidence=(*verdict.evidence, line))
    return replace(
        verdict,
        outcome=Outcome.SLOW,
        fault=Fault.NONE,
        faults=(),
        confidence=Confidence.HIGH,
        headline=f"slow, not hung: {words.ranks(moved)} moved between the two sets of dumps"
        + (f"; in the later one, {verdict.headline}" if verdict.ranks else ""),
        next_steps=("Compare the times of steps of the ranks that the others wait for.",)
        if verdict.ranks
        else (),
    )
