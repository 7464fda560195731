"""What a judge says: verdicts, each with the evidence that it rests on."""

from __future__ import annotations

from enum import StrEnum

from keepstep.canary.cell import Role
from keepstep.canary.facts import Facts


class Verdict(StrEnum):
    """The three answers, and why a cell has none."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"  # evidence is missing; it blocks like a fail
    NOT_RUN = "not run"  # this machine cannot; what it was to prove stays open


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the one that decides: fail, then inconclusive and not run, then pass."""
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    if not verdicts or set(verdicts) != {Verdict.PASS}:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


class GateResult(Facts):
    """One hard gate: no statistics, no tolerance that is not stated."""

    gate: str  # such as crash, hang, parity, memory, artifacts, leftovers, warnings, identity
    verdict: Verdict
    seen: str
    wanted: str
    next: str = ""  # what to do about it


class SoftResult(Facts):
    """One metric, compared by interleaved pairs. Ratios are candidate over reference."""

    metric: str
    unit: str
    verdict: Verdict
    judged: bool = True  # False: informative, it decides nothing
    reference: float | None = None  # medians
    candidate: float | None = None
    ratio: float | None = None  # geometric mean of the pairs' ratios, above 1 is worse
    lower: float | None = None  # one-sided bounds of the ratio, corrected for several metrics
    upper: float | None = None
    margin: float  # such as 0.05: up to 5 % worse is not inferior
    pairs: int
    pairs_wanted: int | None = None  # that would allow an answer; None when nothing helps
    noise: float | None = None  # standard deviation of one run, as a fraction, from the pairs
    reason: str = ""


class CellVerdict(Facts):
    """One cell."""

    cell: str
    role: Role
    verdict: Verdict
    runs: int
    gates: tuple[GateResult, ...] = ()
    soft: tuple[SoftResult, ...] = ()
    reason: str  # in one sentence
    hang_bound: str = ""  # such as "0 of 20 runs hung: under 14 % of runs hang (95 % confidence)"


class Control(Facts):
    """A known difference that the judge must see, or a known sameness that it must not."""

    name: str  # same, slower, faster
    cell: str
    verdict: Verdict  # pass: the judge can be believed
    reason: str


class Judgement(Facts):
    """The verdict over all cells."""

    verdict: Verdict
    sentence: str
    cells: tuple[CellVerdict, ...]
    controls: tuple[Control, ...]
    open: tuple[str, ...] = ()  # what was to be proven and is not, in plain words
