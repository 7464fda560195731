"""One incident as a page: a single file that needs no network, for a person at 3 a.m.

The verdict is plain HTML; everything below it is drawn by the page's own script from data that lies
in the page as JSON. Nothing that a file says is ever markup: text is escaped here, and the script
sets text only. The policy in the head admits no script and no style but the page's own.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from keepstep._version import __version__
from keepstep.diagnosis import words
from keepstep.diagnosis.evidence import Life, Observation
from keepstep.diagnosis.frontier import find_frontier
from keepstep.diagnosis.groups import all_ranks
from keepstep.diagnosis.history import Signature, signature
from keepstep.diagnosis.recorders import one_each
from keepstep.diagnosis.stacks import LIBRARY
from keepstep.diagnosis.verdict import Outcome, Verdict, Victim
from keepstep.diagnosis.waits import find_waits
from keepstep.incident.answer import ranks_text
from keepstep.incident.gather import Gathered
from keepstep.incident.look import look, policy_hash
from keepstep.incident.page_lanes import Call, Lane, Picture, Row, draw
from keepstep.incident.ranks import last_events, missing_reasons
from keepstep.recorder.model import Frame

TITLES = {
    Outcome.CULPRIT: "Culprit",
    Outcome.NO_RANK: "No rank is to blame",
    Outcome.HEALTHY: "Healthy",
    Outcome.SLOW: "Slow, not hung",
    Outcome.UNKNOWN: "Unknown",
}

LONGEST = 300  # characters of a list of ranks or of a group's label in a line about waiting
_OTHERS = re.compile(r"ranks? [\d, toand]+ waits? for (?:it|them)\b")  # a clause of a headline


def to_page(gathered: Gathered, verdict: Verdict, source: str) -> str:
    """Return the page of one attempt. ``source`` is the path that was explained."""
    here = Path(__file__)
    own, script = (here.with_name(name).read_text() for name in ("page.css", "page.js"))
    style = look() + own
    name = f"{source}, attempt {gathered.attempt}" if gathered.attempt else source
    return Template(here.with_name("page.html").read_text()).substitute(
        title=escape(f"{TITLES[verdict.outcome]}: {name}"),
        source=escape(name),
        facts=escape(" · ".join(_facts(gathered))),
        outcome=verdict.outcome.value,
        word=escape(TITLES[verdict.outcome]),
        confidence=_confidence(verdict),
        headline=_headline(verdict.headline),
        lists="".join(
            [
                _list("Evidence", verdict.evidence),
                _list("This would decide", verdict.would_decide),
                _list("Next steps", verdict.next_steps),
            ]
        ),
        version=escape(__version__),
        style_hash=policy_hash(style),
        script_hash=policy_hash(script),
        style=style,
        script=script,
        data=_json(to_data(gathered, verdict)),
    )


def to_data(gathered: Gathered, verdict: Verdict) -> dict[str, Any]:
    """Return what the script draws; ranks are text such as ``0-11, 13`` wherever they are many."""
    evidence = gathered.evidence
    stacks = _Stacks()
    reasons = missing_reasons(gathered)
    dumps, _ = one_each(evidence.dumps)
    picture = Picture()
    if dumps:
        known = all_ranks(dumps, evidence.observations)
        everyone = (
            known if evidence.expected_ranks is None else evidence.expected_ranks | set(dumps)
        )
        frontier = find_frontier(dumps, everyone)
        picture = draw(
            frontier,
            find_waits(frontier),
            verdict,
            reasons,
            last_events(evidence, frontier.dumps),
        )
    return {
        "blamed": list(verdict.ranks),
        "faults": {rank: fault.value for rank, fault in verdict.faults},
        "waits": _waits(verdict),
        "calls": _calls(picture.calls, stacks),
        "lanes": [_lane(lane) for lane in picture.lanes],
        "processes": _processes(evidence.observations, reasons, stacks),
        "missing": _missing(gathered),
        "findings": [
            {"severity": each.severity.value, "path": each.path, "text": each.text}
            for each in evidence.findings
        ],
        "stacks": stacks.stacks,
        "frames": stacks.frames,
    }


class _Stacks:
    """Gives stacks and their frames numbers, so that each is written once."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, int, bool]] = []  # with whether it is a library's
        self.stacks: list[list[int]] = []
        self._frame_numbers: dict[Frame, int] = {}
        self._stack_numbers: dict[tuple[Frame, ...], int] = {}

    def number(self, stack: tuple[Frame, ...]) -> int:
        """Return the number of a stack, -1 of an empty one."""
        if not stack:
            return -1
        if stack not in self._stack_numbers:
            self._stack_numbers[stack] = len(self.stacks)
            self.stacks.append([self._frame(frame) for frame in stack])
        return self._stack_numbers[stack]

    def _frame(self, frame: Frame) -> int:
        if frame not in self._frame_numbers:
            self._frame_numbers[frame] = len(self.frames)
            library = any(part in frame.file for part in LIBRARY)
            self.frames.append((frame.function, frame.file, frame.line, library))
        return self._frame_numbers[frame]


def _facts(gathered: Gathered) -> list[str]:
    """Return what the head of the page says about the job."""
    ranks = {each.rank for each in gathered.evidence.dumps}
    facts = [f"{len(ranks)} {'dump' if len(ranks) == 1 else 'dumps'}"]
    backends = sorted({each.dump.backend.value for each in gathered.evidence.dumps})
    facts += [", ".join(backends)] if backends else []
    if gathered.manifests:
        first = gathered.manifests[0]
        facts.append(f"incident {first.incident}")
        facts.append(f"generation {first.generation}, step {first.step}")
        facts += [f"outcome: {first.outcome}"] if first.outcome else []
    return facts


def _headline(text: str) -> str:
    """Return the headline as a sentence, each clause on a line of its own."""
    clauses = f"{text[:1].upper()}{text[1:]}.".split("; ")
    lines = [f"{clause}; " for clause in clauses[:-1]] + clauses[-1:]
    return "".join(
        f'<span class="{"others" if _OTHERS.match(line) else "what"}">{escape(line)}</span>'
        for line in lines
    )


def _confidence(verdict: Verdict) -> str:
    if verdict.outcome is not Outcome.CULPRIT:
        return ""
    return f'<span class="confidence">{escape(verdict.confidence.value)} confidence</span>'


def _list(title: str, sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    kind = title.lower().replace(" ", "-")
    heading = f'<section class="{kind}"><h2>{escape(title)}</h2>'
    return f"{heading}<ul>{items}</ul></section>" if items else ""


def _json(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element that it lies in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _waits(verdict: Verdict) -> list[dict[str, Any]]:
    """Return who waits for whom, those first who wait for a rank that is to blame."""
    guilty = set(verdict.ranks)
    lines = [
        {
            "ranks": _many(waiting),
            "each_other": each_other,
            "blamed": _many(guilty & needed),
            "others": _many(needed - guilty),
            "operation": operation,
            "group": _short(group),
        }
        for waiting, needed, each_other, operation, group in _folded(verdict.victims)
    ]
    return sorted(lines, key=lambda line: not line["blamed"])


Wait = tuple[list[int], set[int], bool, str, str]


def _folded(victims: Iterable[Victim]) -> list[Wait]:
    """Return who waits, for which others, and whether for each other; the largest first."""
    circles: dict[tuple[frozenset[int], str, str], list[int]] = defaultdict(list)
    for victim in victims:
        everyone = frozenset((*victim.waits_for, victim.rank))
        circles[everyone, victim.operation, victim.group].append(victim.rank)
    found: list[Wait] = []
    alike: dict[tuple[frozenset[int], str, str], list[int]] = defaultdict(list)
    for (everyone, operation, group), ranks in circles.items():
        needed = everyone.difference(ranks)
        if len(ranks) > 1:
            found.append((ranks, set(needed), True, operation, group))
        else:
            alike[needed, operation, group] += ranks
    for (needed, operation, group), ranks in alike.items():
        found.append((ranks, set(needed), False, operation, group))
    return sorted(found, key=lambda wait: (-len(wait[0]), wait[0]))


def _many(ranks: Collection[int]) -> str:
    """Return ranks as text, not all of them where that would be long; "" for none."""
    if not ranks:
        return ""
    text = ranks_text(ranks)
    short = _short(text)
    return short if short == text else f"{short} ({len(ranks)} ranks)"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _calls(calls: Iterable[Call], stacks: _Stacks) -> list[dict[str, Any]]:
    """Return all calls; those with one number under ``alike`` can complete together."""
    alike: dict[Signature, int] = {}
    return [
        {
            "name": f"{call.operation.name} {call.peer}".rstrip(),
            "tensors": words.tensors(call.operation),
            "alike": alike.setdefault(signature(call.operation), len(alike)),
            "timeout": call.timeout_ms,
            "stack": stacks.number(call.stack),
        }
        for call in calls
    ]


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "label": lane.label,
        "kind": lane.kind,
        "members": ranks_text(lane.members),
        "size": len(lane.members),
        "transfers": lane.transfers,
        "importance": lane.importance.value,
        "columns": [[column.number, column.call] for column in lane.columns],
        "rows": [_row(lane, row) for row in lane.rows],
    }


def _row(lane: Lane, row: Row) -> dict[str, Any]:
    body: dict[str, Any] = {"ranks": ranks_text(row.ranks, word=False), "size": len(row.ranks)}
    if row.blamed:
        body["blamed"] = True
    if row.empty:
        return {**body, "empty": row.empty}
    body["marks"] = row.marks
    usual = [column.call for column in lane.columns]
    differs = {at: call for at, call in enumerate(row.calls) if call != usual[at]}
    if differs:
        body["calls"] = differs
    if any(since is not None for since in row.since):
        body["since"] = row.since
    return body


def _processes(
    observations: Mapping[int, Observation], reasons: Mapping[int, str], stacks: _Stacks
) -> list[dict[str, Any]]:
    """Return what is known of the processes besides their dumps; equal ones share a row."""
    folded: dict[tuple[str, str, int | None, bool, str, int], list[int]] = defaultdict(list)
    for rank in sorted(observations.keys() | reasons.keys()):
        seen = observations.get(rank, Observation())
        life = "" if seen.life is Life.UNKNOWN else seen.life.value.replace("_", " ")
        stack = stacks.number(seen.stack)
        key = (life, seen.why, seen.step, seen.holds_gil, reasons.get(rank, ""), stack)
        folded[key].append(rank)
    return [
        {
            "ranks": ranks_text(ranks, word=False),
            "life": life,
            "why": why,
            "step": step,
            "gil": gil,
            "no_dump": no_dump,
            "stack": stack,
        }
        for (life, why, step, gil, no_dump, stack), ranks in folded.items()
    ]


def _missing(gathered: Gathered) -> list[dict[str, str]]:
    folded: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in gathered.arrivals:
        if not each.file:
            folded[each.kind, each.reason].append(each.rank)
    return [
        {"kind": kind, "ranks": ranks_text(ranks), "reason": reason}
        for (kind, reason), ranks in folded.items()
    ]
