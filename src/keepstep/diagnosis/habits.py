"""Who went from one call to another as nobody ever did: a step out of the common program.

Ranks of a training job repeat the same calls in the same order, and ranks with the same part in it
repeat each other. One rank that once goes from one call to another that never follows it elsewhere
has left something out, added something, or taken another branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from keepstep.diagnosis.history import History, Token, token
from keepstep.recorder.model import Direction, Entry

ASKED = 64  # ranks whose calls are compared
LOOK_BACK = 64  # calls before the hang in which a step out of the program counts

Habit = tuple[str, Token, Direction | None, int | None, int | None]
"""Kind of group, call, and of a transfer: its half, this rank and its peer within the group."""


@dataclass(frozen=True, slots=True)
class Slip:
    """A rank's first step that nobody else ever made."""

    rank: int
    entry: Entry  # the call that it came to
    previous: Entry  # the call that it came from
    added: bool  # a call that nobody else makes, or one call twice


def find_slips(history: History, suspects: Iterable[int]) -> list[Slip]:
    """Return the slips of the suspects: one for each that made any.

    Steps are counted over the suspects and other ranks up to a number of ``ASKED``.
    """
    wanted = history.with_dump(suspects)[:ASKED]
    others = [rank for rank in history.with_dump(history.frontier.everyone) if rank not in wanted]
    asked = [*wanted, *others[: ASKED - len(wanted)]]
    steps: Counter[tuple[int, int]] = Counter()
    calls: Counter[int] = Counter()
    numbers: dict[Habit, int] = {}
    programs: dict[int, list[tuple[int, Entry]]] = {}
    for rank in asked:
        program = programs[rank] = _program(history, rank, numbers)
        calls.update(number for number, _ in program)
        steps.update((a, b) for (a, _), (b, _) in pairwise(program))
    found = []
    for rank in wanted:
        program = programs[rank]
        start = max(1, _frontier(history, rank, program) - LOOK_BACK)
        for at in range(start, len(program)):
            (before, previous), (call, entry) = program[at - 1], program[at]
            if steps[before, call] == 1:
                added = calls[call] == 1 or before == call
                found.append(Slip(rank, entry, previous, added))
                break
    return found


def only_slip(history: History, suspects: Iterable[int]) -> Slip | None:
    """The slip of the one suspect that made any; None if several or none did."""
    slips = find_slips(history, suspects)
    return slips[0] if len(slips) == 1 else None


def _program(history: History, rank: int, numbers: dict[Habit, int]) -> list[tuple[int, Entry]]:
    groups = history.frontier.roster.groups
    slots = history.frontier.roster.of[rank]
    known: dict[tuple[int, int, int], int] = {}
    found = []
    for entry in history.entries(rank):
        fast = (entry.pg_id, id(entry.operation), id(entry.stack))
        if fast not in known:
            kind = groups[slots[entry.pg_id, entry.group]].description
            what = entry.operation
            habit = (kind, token(entry), what.direction, what.own, what.peer)
            known[fast] = numbers.setdefault(habit, len(numbers))
        found.append((known[fast], entry))
    return found


def _frontier(history: History, rank: int, program: list[tuple[int, Entry]]) -> int:
    """The place of the oldest pending call in a rank's program, or its end."""
    positions = history.frontier.standings[rank].positions.values()
    records = [p.pending.record for p in positions if p.pending is not None]
    first = min(records, default=None)
    if first is None:
        return len(program)
    return next(at for at, (_, entry) in enumerate(program) if entry.record >= first)
