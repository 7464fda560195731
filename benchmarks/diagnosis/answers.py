"""What a tool answered, taken from its own output, and how that is marked. Pure functions.

The rule, written down before the tools were run on the cases:

- Marked are the ranks that a tool names as the cause, compared with those that were (the truth of
  the case; empty where no rank is to blame). The kind of fault is not marked: not all tools say it.
- ``exact``: it names all of them and no other. ``partial``: it names one of them, but also others,
  or not all. ``wrong``: it names only others, or anyone where nobody is to blame. ``no answer``: it
  ends normally and names nobody where somebody is to blame, or says itself that it cannot tell.
  ``crash``: it ends with an error and has named nobody until then.
- keepstep: ``ranks`` of ``keepstep explain --json``; the verdict ``unknown`` says that it cannot
  tell.
- torchfrtrace: every "Culprit rank N" and every rank in "missing ranks: {...}", which is how it
  calls members that lack an operation. It reports one operation after the other, so there are two
  readings, all that it names and what its first report names; the one with the better mark counts.
  It says that it cannot tell with "We cannot decide".
- NVRx: its ``hanging ranks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """How good an answer is, the best first."""

    EXACT = "exact"
    PARTIAL = "partial"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    CRASH = "crash"


ORDER = tuple(Mark)

_CULPRIT = re.compile(r"Culprit rank (\d+)")
_MISSING = re.compile(r"missing ranks: \{([\d, ]*)\}")
_HANGING = re.compile(r"hanging ranks: \[([\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class Output:
    """What a process left."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said.

    Attributes:
        readings: the ranks that it names; several where its output can be read in several ways.
        undecided: it says that it cannot tell.
        error: the last line of its output, where it ended with an error.
        fault: the kind of fault, where it says one.
    """

    readings: tuple[tuple[int, ...], ...]
    undecided: bool = False
    error: str = ""
    fault: str = ""


def mark(answer: Answer, truth: Iterable[int]) -> Mark:
    """Return how good an answer is, by the rule above."""
    guilty = set(truth)
    if answer.error and not any(answer.readings):
        return Mark.CRASH
    marks = [_mark_of(set(reading), guilty, answer.undecided) for reading in answer.readings]
    return min(marks, key=ORDER.index)


def _mark_of(named: set[int], guilty: set[int], undecided: bool) -> Mark:
    if not named:
        return Mark.NO_ANSWER if guilty or undecided else Mark.EXACT
    if named == guilty:
        return Mark.EXACT
    return Mark.PARTIAL if named & guilty else Mark.WRONG


def keepstep(output: Output) -> Answer:
    """Read the answer of ``keepstep explain --json``."""
    try:
        found = json.loads(output.stdout)
        attempts = found.get("attempts", [found])
        ranks = {rank for each in attempts for rank in each["ranks"]}
        unknown = any(each["verdict"] == "unknown" for each in attempts)
        faults = sorted({each["fault"] for each in attempts} - {""})
    except (ValueError, KeyError):
        return Answer(readings=((),), error=_last_line(output))
    return Answer(readings=(_sorted(ranks),), undecided=unknown, fault=", ".join(faults))


def torchfrtrace(output: Output) -> Answer:
    """Read the log of torchfrtrace; it goes to standard error."""
    text = output.stdout + output.stderr
    reports = [named for line in text.splitlines() if (named := _named_in(line))]
    everything = {rank for named in reports for rank in named}
    return Answer(
        readings=(_sorted(everything), _sorted(reports[0])) if reports else ((),),
        undecided="We cannot decide" in text,
        error=_last_line(output) if output.status else "",
    )


def _named_in(line: str) -> set[int]:
    named = {int(rank) for rank in _CULPRIT.findall(line)}
    for listed in _MISSING.findall(line):
        named.update(_numbers(listed))
    return named


def nvrx(output: Output) -> Answer:
    """Read the answer that ``run_nvrx.py`` prints."""
    found = _HANGING.search(output.stdout)
    if output.status or found is None:
        return Answer(readings=((),), error=_last_line(output))
    return Answer(readings=(_sorted(_numbers(found.group(1))),))


def _numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


def _sorted(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))


def _last_line(output: Output) -> str:
    lines = [line for line in output.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"status {output.status}"
