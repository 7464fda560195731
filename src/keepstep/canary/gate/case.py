"""What a gate looks at, and how it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keepstep.canary.cell import Cell, Role
from keepstep.canary.plan import Job, Plan
from keepstep.canary.record import Outcome, RankRecord, RunRecord
from keepstep.canary.verdict import GateResult, Verdict

_OF_A_PAIR = re.compile(r"pair (\d+)(.*)", re.DOTALL)  # as gates begin what one run shows
_SHOWN = 3  # findings that are spelled out; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cell with its runs, and the reference with its own; runs are in the order of the pairs."""

    plan: Plan
    cell: Cell
    runs: tuple[RunRecord, ...]
    reference: Cell | None  # None for a reference, and for what must be refused
    reference_runs: tuple[RunRecord, ...]
    wanted_class: str

    @property
    def job(self) -> Job:
        """The job of the plan."""
        return self.plan.jobs[self.cell.job]

    @property
    def ended(self) -> tuple[RunRecord, ...]:
        """Runs that ended as a run should: what they do not say, they should have said."""
        return tuple(run for run in self.runs if run.outcome is Outcome.COMPLETE)

    @property
    def is_whole(self) -> bool:
        """Every run that the plan wants is there and ended as it should."""
        if self.cell.role is Role.REFUSAL:
            ends = [run.outcome in (Outcome.REFUSED, Outcome.CRASH) for run in self.runs]
            return sum(ends) == self.plan.pairs
        return len(self.ended) == self.plan.pairs

    @property
    def is_comparable(self) -> bool:
        """The reference is whole as well."""
        ended = [run for run in self.reference_runs if run.outcome is Outcome.COMPLETE]
        return self.reference is None or len(ended) == self.plan.pairs

    def ranks(self) -> Iterator[tuple[str, RankRecord]]:
        """Yield the ranks of the runs that ended, each with the words for where that was."""
        yield from named_ranks(self.ended)

    def reference_ranks(self) -> Iterator[tuple[str, RankRecord]]:
        """Yield the ranks of the reference."""
        yield from named_ranks(self.reference_runs)


def named_ranks(runs: Sequence[RunRecord]) -> Iterator[tuple[str, RankRecord]]:
    """Yield the ranks of runs, each with the words for where that was."""
    for run in runs:
        for rank in run.ranks:
            yield f"pair {run.pair}, rank {rank.rank}", rank


def settle(
    case: Case,
    gate: str,
    problems: Sequence[str],
    *,
    seen: str,
    wanted: str,
    mend: str,
    compares: bool = False,
) -> GateResult:
    """Return a gate's answer: a problem decides, then what could not be seen, then nothing else.

    Args:
        case: What was looked at.
        gate: The gate's name.
        problems: What was found; a datum that a complete run lacks is one.
        seen: What was seen where there is no problem.
        wanted: What had to be seen.
        mend: What to do about a problem.
        compares: The gate needs the reference.
    """
    if problems:
        return GateResult(
            gate=gate, verdict=Verdict.FAIL, seen=listed(problems), wanted=wanted, next=mend
        )
    if not case.is_whole:
        text = f"only {len(case.ended)} of {case.plan.pairs} runs ended in a way that shows it"
        return GateResult(gate=gate, verdict=Verdict.INCONCLUSIVE, seen=text, wanted=wanted)
    if compares and not case.is_comparable:
        text = "the reference has not all its runs, so there is nothing to compare with"
        return GateResult(gate=gate, verdict=Verdict.INCONCLUSIVE, seen=text, wanted=wanted)
    return GateResult(gate=gate, verdict=Verdict.PASS, seen=seen, wanted=wanted)


def listed(problems: Sequence[str]) -> str:
    """Return findings in one line; of many, the first ones and how many more there are.

    What was found in several runs alike is said once, with the pairs of these runs.
    """
    alike: dict[str, list[str]] = {}
    for each in dict.fromkeys(problems):
        match = _OF_A_PAIR.fullmatch(each)
        alike.setdefault(match[2] if match else each, []).extend([match[1]] if match else [])
    distinct = [_of_pairs(pairs, text) for text, pairs in alike.items()]
    more = len(distinct) - _SHOWN
    return "; ".join(distinct[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _of_pairs(pairs: Sequence[str], text: str) -> str:
    if not pairs:
        return text
    if len(pairs) == 1:
        return f"pair {pairs[0]}{text}"
    return f"{len(pairs)} runs (pairs {', '.join(pairs)}){text}"
