"""What to do next: what gates, metrics, drills and gaps ask for, each thing once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keepstep.canary.facts import Facts
from keepstep.canary.verdict import CellVerdict, SoftResult, Verdict
from keepstep.report.model import NotRun, Rehearsal
from keepstep.report.summary import left_out, listed, verdict_of

MOST = 8  # that a reader is asked to take in; the others are with what they are about

_SLOWER = "Compare the receipt with that of the reference: keepstep receipt diff A B"
_NOISE = (
    "Make the machine quieter or the margin wider: for these metrics more pairs would not give an "
    "answer"
)
_NEW = "a changed plan needs a new folder: --out DIR"
_AGAIN = "start the same command again: it goes on where it stopped"
_DONE = "Sign below, and keep the old stack until no checkpoint needs it"


class Step(Facts):
    """One thing to do."""

    text: str
    about: str = ""  # cells, metrics of cells, drills or parts of the report that ask for it


def steps(rehearsal: Rehearsal) -> tuple[Step, ...]:
    """Return what to do next, the failures first; each thing once, with all that asks for it."""
    asked: dict[str, list[str]] = {}
    # What passed may leave something to do as well: a way back is a debt with a date.
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NOT_RUN, Verdict.PASS):
        for about, text in _asked(rehearsal, verdict):
            asked.setdefault(text, []).append(about)
    late = [_AGAIN] if any(each.for_time for each in rehearsal.not_run) else []
    back = [_with(left_out(rehearsal))] if left_out(rehearsal) else []
    for text in (*late, *back, *rehearsal.next, *_elsewhere(rehearsal.not_run)):
        asked.setdefault(text, [])
    if verdict_of(rehearsal) is Verdict.PASS:
        asked.setdefault(_DONE, [])
    return tuple(
        Step(text=text, about=listed(list(dict.fromkeys(filter(None, about)))))
        for text, about in asked.items()
    )


def _asked(rehearsal: Rehearsal, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield what is asked for because of this verdict, and who asks."""
    # What a control was planted with is found in it, and is nothing to mend.
    open_cells = [
        (cell.cell.id, cell.verdict)
        for cell in rehearsal.cells
        if cell.verdict is not None and cell.verdict.verdict is not Verdict.PASS
    ]
    for name, found in open_cells:
        for gate in found.gates:
            if gate.verdict is verdict and gate.next:
                yield name, gate.next
    yield from _about_metrics(open_cells, verdict)
    for drill in rehearsal.drills:
        if drill.verdict is verdict and drill.next:
            yield drill.name, drill.next
    answer = rehearsal.checkpoint
    if answer and answer.verdict is verdict and answer.next:
        yield "checkpoint", answer.next


def _about_metrics(
    cells: Iterable[tuple[str, CellVerdict]], verdict: Verdict
) -> Iterator[tuple[str, str]]:
    """Yield what to do about metrics that did not pass: one number of pairs does for all."""
    found = [
        (name, soft)
        for name, cell in cells
        for soft in cell.soft
        if soft.judged and soft.verdict is verdict
    ]
    if verdict is Verdict.FAIL:
        yield from ((name, _SLOWER) for name, _ in found)
    if verdict is not Verdict.INCONCLUSIVE:
        return
    wanted = max((soft.pairs_wanted for _, soft in found if soft.pairs_wanted), default=0)
    asked: dict[tuple[str, str], list[str]] = {}
    for name, soft in found:
        asked.setdefault((name, _about_noise(soft, wanted)), []).append(soft.metric)
    # One cell may need more pairs for one metric and have no use for them for another.
    yield from ((f"{listed(metrics)} of {name}", text) for (name, text), metrics in asked.items())


def _about_noise(soft: SoftResult, wanted: int) -> str:
    if soft.pairs_wanted:
        return f"Set pairs = {wanted} in the plan ({_NEW}): with fewer the noise allows no answer"
    return _NOISE if soft.noise is not None else "Find out why this was not measured"


def _with(missing: list[str]) -> str:
    """Say how the drills that a plan leaves out come into it."""
    return (
        f"Put {listed(missing)} into drills in the plan, and a job that saves into saving_job "
        f"({_NEW})"
    )


def _elsewhere(not_run: Iterable[NotRun]) -> Iterator[str]:
    """Yield that the plan is to be run elsewhere as well, with what this machine lacks."""
    counts: dict[str, int] = {}
    for each in not_run:
        if each.for_time:
            continue  # the same command on the same machine runs it
        counts[each.why] = counts.get(each.why, 0) + 1
    if counts:
        reasons = "; ".join(f"{why} ({count} not run)" for why, count in counts.items())
        yield f"Run the plan on another machine as well: {reasons}"
