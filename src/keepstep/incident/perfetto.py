"""An attempt as a trace for Perfetto or chrome://tracing (the JSON trace event format).

A process for each rank, a track in it for each group, a slice for each operation, arrows from ranks
that wait to ranks that are waited for. Clocks of hosts differ, so the last events of all hosts lie
on one time; everything else keeps its distance from the last event of its own host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from keepstep._version import __version__
from keepstep.diagnosis import words
from keepstep.diagnosis.frontier import Frontier, find_frontier
from keepstep.diagnosis.groups import all_ranks
from keepstep.diagnosis.recorders import one_each
from keepstep.diagnosis.stacks import call_site
from keepstep.diagnosis.standing import Standing
from keepstep.diagnosis.verdict import Verdict
from keepstep.diagnosis.waits import Lack, Meeting, Step, Waits, find_waits
from keepstep.incident.gather import Gathered
from keepstep.incident.ranks import last_events, missing_reasons
from keepstep.recorder.meaning import Progress, progress
from keepstep.recorder.model import Entry

SLICES = 200_000  # of a whole trace; viewers become slow beyond
FEWEST = 20  # newest operations of a rank that are kept even so
ARROWS = 20_000
LONGEST = 200  # characters of a name
MICROSECOND = 1000  # nanoseconds; the unit of times in the format
WAITED_FOR, GROUPS = 1, 2  # tracks: on which others wait for a rank, and of the first group
TIMES = (
    "Clocks of hosts differ. The last event of every host lies on the same time; all other times"
    " keep their distance from the last event of their own host. Order across hosts says nothing."
)
OPEN = (Progress.PENDING, Progress.RUNNING, Progress.GIVEN_UP)

Event = dict[str, Any]


def to_trace(gathered: Gathered, verdict: Verdict, source: str) -> Iterator[str]:
    """Return the text of a trace, in parts."""
    evidence = gathered.evidence
    dumps, _ = one_each(evidence.dumps)
    known = all_ranks(dumps, evidence.observations)
    everyone = known if evidence.expected_ranks is None else evidence.expected_ranks | set(dumps)
    frontier = find_frontier(dumps, everyone)
    drawing = _Drawing(frontier, last_events(evidence, frontier.dumps))
    head = {
        "displayTimeUnit": "ms",
        "metadata": {
            "source": source,
            "attempt": gathered.attempt,
            "written by": f"keepstep {__version__}",
            "verdict": verdict.headline,
            "times": TIMES,
            "operations left out": drawing.left_out,
            "processes": "the process number is the rank + 1",
        },
    }
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in drawing.events(verdict, missing_reasons(gathered)):
        yield separator + json.dumps(event, separators=(",", ":"))
        separator = ",\n"
    yield "\n]}\n"


class _Drawing:
    """Times and tracks of one trace. Times are nanoseconds from its first event."""

    def __init__(self, frontier: Frontier, last_event_ns: dict[int, int]) -> None:
        self._frontier = frontier
        self._last = last_event_ns
        self._sites: dict[int, str] = {}
        ranks = max(1, len(frontier.dumps))
        most = max(FEWEST, SLICES // ranks)
        self._entries = {
            rank: _newest(dump.entries, frontier.standings[rank], most)
            for rank, dump in frontier.dumps.items()
        }
        whole = sum(len(dump.entries) for dump in frontier.dumps.values())
        self.left_out = whole - sum(map(len, self._entries.values()))
        self._span = max(
            (
                last_event_ns[rank] - entry.created_ns
                for rank, entries in self._entries.items()
                for entry in entries
                if entry.created_ns is not None
            ),
            default=0,
        )

    def events(self, verdict: Verdict, why_missing: dict[int, str]) -> Iterator[Event]:
        """Return all events: names, slices, arrows."""
        blamed = set(verdict.ranks)
        waits = find_waits(self._frontier)
        for rank in sorted(self._frontier.everyone):
            yield from self._process(rank, rank in blamed)
            if rank in self._frontier.dumps:
                yield from self._rank(rank)
            else:
                reason = why_missing.get(rank) or "nothing says why"
                yield self._open(rank, WAITED_FOR, f"no dump: {reason}", 0, {})
        yield from self._arrows(waits)

    def _process(self, rank: int, blamed: bool) -> Iterator[Event]:
        name = f"rank {rank}, blamed" if blamed else f"rank {rank}"
        yield _about(rank, "process_name", name=name)
        # Blamed ranks lie on top, the others in their order.
        yield _about(rank, "process_sort_index", sort_index=rank - (10**6 if blamed else 0))
        yield _about(rank, "thread_name", tid=WAITED_FOR, name="others wait for it")
        for group in sorted(set(self._frontier.roster.of.get(rank, {}).values())):
            label = self._frontier.roster.groups[group].label
            yield _about(rank, "thread_name", tid=group + GROUPS, name=_short(label))

    def _rank(self, rank: int) -> Iterator[Event]:
        """Return the slices of one rank. Those of a track never overlap, as viewers want it."""
        free: dict[int, int] = {}
        backend = self._frontier.standings[rank].backend
        roster = self._frontier.roster
        for entry in self._entries[rank]:
            group = roster.of[rank][entry.pg_id, entry.group]
            position = self._frontier.standings[rank].positions.get(group)
            state = progress(entry, backend)
            first = None if position is None or entry.is_p2p else position.pending_sequence
            pending = state in OPEN or (first is not None and entry.sequence == first)
            begin = self._at(rank, entry.started_ns or entry.created_ns)
            begin = max(begin, free.get(group, 0))
            name = _name(entry)
            args = self._arguments(entry, state)
            if pending:
                yield self._open(rank, group + GROUPS, f"{name} (pending)", begin, args)
                continue
            end = begin
            if entry.completed_ns is not None:
                end = max(begin, self._at(rank, entry.completed_ns))
            free[group] = end
            yield {
                "ph": "X",
                "pid": rank + 1,
                "tid": group + GROUPS,
                "ts": begin / MICROSECOND,
                "dur": (end - begin) / MICROSECOND,
                "name": name,
                "cat": entry.operation.name,
                "args": args,
            }

    def _arguments(self, entry: Entry, state: Progress) -> Event:
        args: Event = {"state": str(state), "record": entry.record}
        if tensors := words.tensors(entry.operation):
            args["tensors"] = tensors
        stack = id(entry.stack)  # shared by entries; comparing frames would take long
        if stack not in self._sites:
            self._sites[stack] = call_site(entry.stack)
        if site := self._sites[stack]:
            args["called at"] = site
        if entry.completed_ns is None and state in (Progress.FINISHED, Progress.ENDED):
            args["completed"] = "time not recorded"
        return args

    def _at(self, rank: int, time_ns: int | None) -> int:
        return 0 if time_ns is None else max(0, self._span - (self._last[rank] - time_ns))

    def _open(self, rank: int, tid: int, name: str, begin: int, args: Event) -> Event:
        """Return a slice that begins and never ends: viewers draw it to the end of the trace."""
        return {
            "ph": "B",
            "pid": rank + 1,
            "tid": tid,
            "ts": begin / MICROSECOND,
            "name": name,
            "cat": "pending",
            "args": args,
        }

    def _arrows(self, waits: Waits) -> Iterator[Event]:
        """Return an arrow from each waiting operation to each rank that did not come to it."""
        number, end = 0, self._span / MICROSECOND
        for step, meeting in waits.meetings.items():
            needed = meeting.lacking(Lack.ABSENT, Lack.SILENT, Lack.BUSY, Lack.PERHAPS)
            waiting = [rank for rank in sorted(meeting.waiting) if rank not in meeting.lacks]
            awaited = self._awaited(step, meeting) if needed else {}
            for lacking in needed:
                yield {**awaited, "pid": lacking + 1}
                for rank in waiting:
                    if number == ARROWS:
                        return
                    number += 1
                    arrow = {"cat": "waits", "name": "waits for", "id": number, "ts": end}
                    yield {"ph": "s", "pid": rank + 1, "tid": step.group + GROUPS, **arrow}
                    yield {"ph": "f", "bp": "e", "pid": lacking + 1, "tid": WAITED_FOR, **arrow}

    def _awaited(self, step: Step, meeting: Meeting) -> Event:
        """Return the slice of a rank that others wait for in ``step``."""
        entries = [entry for entry in meeting.waiting.values() if entry is not None]
        what = _name(entries[0]) if entries else f"operation {step.sequence}"
        group = self._frontier.roster.groups[step.group].label
        begins = [
            self._at(waiting, entry.created_ns)
            for waiting, entry in meeting.waiting.items()
            if entry is not None
        ]
        name = f"{what} of {group}: awaited by {words.ranks(meeting.waiting)}"
        return self._open(-1, WAITED_FOR, _short(name), min(begins, default=0), {})


def _newest(entries: Sequence[Entry], standing: Standing, most: int) -> tuple[Entry, ...]:
    """Return the newest entries of a rank, and older ones that it waits in."""
    newest = entries[-most:]
    held: list[Entry | None] = [position.pending for position in standing.positions.values()]
    held += [transfers.pending for transfers in standing.transfers.values()]
    older = [e for e in held if e is not None and newest and e.record < newest[0].record]
    return (*sorted(older, key=lambda entry: entry.record), *newest)


def _about(rank: int, kind: str, *, tid: int = 0, **args: object) -> Event:
    return {"ph": "M", "pid": rank + 1, "tid": tid, "name": kind, "args": args}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _name(entry: Entry) -> str:
    return f"{entry.operation.name} {entry.sequence}"
