"""What a rehearsal comes to: one verdict, one sentence, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keepstep.canary.facts import Facts
from keepstep.canary.verdict import SoftResult, Verdict, worst
from keepstep.report.model import CellResult, NotRun, Rehearsal

MOST_STEPS = 8  # that a reader is asked to take in; the others are with what they are about


class Step(Facts):
    """One thing to do."""

    text: str
    about: str = ""  # the cell, drill or part of the report that asks for it


class Gap(Facts):
    """Something that is open because of what this machine is, with all that it concerns."""

    proves: str
    why: str
    what: tuple[str, ...]


def verdict_of(rehearsal: Rehearsal) -> Verdict:
    """Return the verdict over cells, controls, drills and the checkpoint together.

    What was not run was not proven: it keeps the whole from passing, as does an answer that is
    missing.
    """
    found = [rehearsal.judgement.verdict, *(drill.verdict for drill in rehearsal.drills)]
    found += [control.verdict for control in rehearsal.judgement.controls]
    if not rehearsal.drills or rehearsal.not_run:
        found.append(Verdict.NOT_RUN)
    if any(cell.state == "interrupted" for cell in rehearsal.cells):
        found.append(Verdict.INCONCLUSIVE)
    found.append(rehearsal.checkpoint.verdict if rehearsal.checkpoint else Verdict.NOT_RUN)
    return worst(found)


def sentence(rehearsal: Rehearsal) -> str:
    """Return the verdict as one sentence: whether to move, and what decides it."""
    move = _move(rehearsal)
    failed = list(_with(rehearsal, Verdict.FAIL))
    if failed:
        return f"Do not move {move}: {_listed(failed)} failed."
    verdict = verdict_of(rehearsal)
    done = f"{_count(_judged(rehearsal), 'cell')} and {_count(len(rehearsal.drills), 'drill')}"
    if verdict is Verdict.PASS:
        return f"Ready to move {move}: {done} passed, nothing was left out."
    if verdict is Verdict.FAIL:
        return f"Do not move {move}: {rehearsal.judgement.sentence}"
    return f"Not decided whether to move {move}: nothing failed in {done}, but {_open(rehearsal)}."


def steps(rehearsal: Rehearsal) -> tuple[Step, ...]:
    """Return what to do next, the failures first; each thing once, with all that asks for it."""
    asked: dict[str, list[str]] = {}
    # What passed may leave something to do as well: a way back is a debt with a date.
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NOT_RUN, Verdict.PASS):
        for about, text in _asked(rehearsal, verdict):
            asked.setdefault(text, []).append(about)
    for text in rehearsal.next:
        asked.setdefault(text, [])
    for why, count in _not_run_by_reason(rehearsal.not_run):
        text = f"Run the plan on another machine as well: {why}"
        asked.setdefault(f"{text} ({count} of the plan not run)", [])
    if verdict_of(rehearsal) is Verdict.PASS:
        asked.setdefault("Sign below, and keep the old stack until no checkpoint needs it", [])
    return tuple(
        Step(text=text, about=_listed(list(dict.fromkeys(filter(None, about)))))
        for text, about in asked.items()
    )


def gaps(rehearsal: Rehearsal) -> tuple[Gap, ...]:
    """Return what was not run, grouped by what it was to prove and why it was not run."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for each in rehearsal.not_run:
        grouped.setdefault((each.proves, each.why), []).append(each.what)
    return tuple(
        Gap(proves=proves, why=why, what=tuple(what)) for (proves, why), what in grouped.items()
    )


def verdict_of_cell(cell: CellResult) -> Verdict:
    """Return what a report shows for a cell: one that was interrupted has no answer."""
    if cell.verdict is not None and cell.state == "judged":
        return cell.verdict.verdict
    return Verdict.NOT_RUN if cell.state == "not run" else Verdict.INCONCLUSIVE


def _move(rehearsal: Rehearsal) -> str:
    builds = list(dict.fromkeys(stack.torch for stack in rehearsal.stacks))
    versions = [build.partition("+")[0] for build in builds]
    if len(set(versions)) < len(builds):
        versions = builds  # the versions alone do not tell them apart
    if len(versions) < 2:
        return "to the new stack"
    return f"from PyTorch {versions[0]} to {versions[-1]}"


def _with(rehearsal: Rehearsal, verdict: Verdict) -> Iterator[str]:
    for cell in rehearsal.cells:
        if verdict_of_cell(cell) is verdict:
            yield f"cell {cell.cell.id}"
    for control in rehearsal.judgement.controls:
        if control.verdict is verdict:
            yield f"control {control.name} ({control.cell})"
    for drill in rehearsal.drills:
        if drill.verdict is verdict:
            yield f"drill {drill.name}"
    if rehearsal.checkpoint and rehearsal.checkpoint.verdict is verdict:
        yield "the checkpoint answer"


def _open(rehearsal: Rehearsal) -> str:
    """Say what keeps an answer away."""
    parts = []
    unknown = list(dict.fromkeys(_with(rehearsal, Verdict.INCONCLUSIVE)))
    if unknown:
        parts.append(f"{_listed(unknown)} {'has' if len(unknown) == 1 else 'have'} no answer")
    if rehearsal.not_run:
        count = len(rehearsal.not_run)
        parts.append(f"{count} more could not be run on this machine")
    if not rehearsal.drills:
        parts.append("no drill was run")
    if rehearsal.checkpoint is None:
        parts.append("nobody asked which checkpoint the old stack can read")
    return " and ".join(parts) or rehearsal.judgement.sentence.rstrip(".")


def _asked(rehearsal: Rehearsal, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield what gates, drills and the checkpoint with this verdict ask for, and who asks."""
    for cell in rehearsal.cells:
        # What a control was planted with is found in it, and is nothing to mend.
        if cell.verdict is None or cell.verdict.verdict is Verdict.PASS:
            continue
        for gate in cell.verdict.gates:
            if gate.verdict is verdict and gate.next:
                yield cell.cell.id, gate.next
        for soft in cell.verdict.soft:
            if soft.judged and soft.verdict is verdict is not Verdict.PASS:
                yield cell.cell.id, _about_metric(soft)
    for drill in rehearsal.drills:
        if drill.verdict is verdict and drill.next:
            yield drill.name, drill.next
    answer = rehearsal.checkpoint
    if answer and answer.verdict is verdict and answer.next:
        yield "checkpoint", answer.next


def _about_metric(soft: SoftResult) -> str:
    """Return what to do about a metric without a pass."""
    if soft.verdict is Verdict.FAIL:
        return "Compare the receipt with that of the reference: keepstep receipt diff A B"
    if soft.pairs_wanted:
        return f"Set pairs = {soft.pairs_wanted} in the plan: the noise is too large for fewer"
    return f"Find out why there is no answer about {soft.metric}: {soft.reason}"


def _not_run_by_reason(not_run: Iterable[NotRun]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for each in not_run:
        counts[each.why] = counts.get(each.why, 0) + 1
    return list(counts.items())


def _judged(rehearsal: Rehearsal) -> int:
    return sum(cell.state == "judged" for cell in rehearsal.cells)


def _listed(names: list[str]) -> str:
    """Return names as a sentence has them, not all of them where they are many."""
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
