"""How far each rank came in each of its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keepstep.diagnosis.groups import Roster, build_roster
from keepstep.diagnosis.standing import Position, Standing, find_standing
from keepstep.diagnosis.words import ranks as rank_list
from keepstep.recorder.meaning import MEANINGS, Counting
from keepstep.recorder.model import Backend, Dump, Entry, GroupName


@dataclass(frozen=True, slots=True)
class Frontier:
    """Where all ranks stand. ``notes`` are sentences about what could not be compared."""

    roster: Roster
    everyone: frozenset[int]
    standings: Mapping[int, Standing]
    dumps: Mapping[int, Dump]
    notes: tuple[str, ...] = ()

    def positions(self, group: int) -> dict[int, Position]:
        """Return the positions of the members of a group that left a dump, by rank."""
        found: dict[int, Position] = {}
        for rank in self.roster.groups[group].members:
            standing = self.standings.get(rank)
            if standing is not None and group in standing.positions:
                found[rank] = standing.positions[group]
        return found


def find_frontier(dumps: Mapping[int, Dump], everyone: frozenset[int]) -> Frontier:
    """Find where every rank stands in every group.

    Args:
        dumps: by rank.
        everyone: all ranks of the job, those without a dump included.
    """
    known = Counter(dump.backend for dump in dumps.values())
    del known[Backend.UNKNOWN]
    usual = min(known, key=lambda backend: (-known[backend], backend), default=None)
    notes: list[str] = []
    dumps = dict(sorted(dumps.items()))
    for rank, dump in dumps.items():
        if not MEANINGS[dump.backend].sequence_per_group:
            if dump.entries and dump.entries[0].record > 0:
                notes.append(
                    f"The ring buffer of rank {rank} has wrapped, and its recorder numbers over"
                    " all groups: its operations cannot be lined up with those of other ranks."
                )
            dumps[rank] = number_per_group(dump)
    passes = {rank: find_standing(dump, usual) for rank, dump in dumps.items()}
    roster = build_roster(dumps, {rank: slots for rank, (_, slots) in passes.items()}, everyone)
    standings: dict[int, Standing] = {}
    for rank, (standing, slots) in passes.items():
        standing.rank = rank
        standings[rank] = standing
        for slot, content in slots.items():
            group = roster.of[rank][slot]
            if content.position.last is not None:
                standing.positions[group] = content.position
            members = roster.groups[group].members
            for (direction, peer), transfers in content.transfers.items():
                other = _peer(members, rank, peer)
                standing.transfers[group, direction, other] = transfers
    lost = [rank for rank, standing in standings.items() if standing.lost]
    if lost:
        notes.append(
            f"The ring buffers of {rank_list(lost)} have overwritten operations that are still"
            " pending; a larger one (TORCH_FR_BUFFER_SIZE) would show them."
        )
    frontier = Frontier(roster, everyone, standings, dumps, tuple(notes))
    _use_counters(frontier)
    _suspect_unproven(frontier)
    return frontier


def _peer(members: tuple[int, ...], rank: int, peer: int | None) -> int | None:
    """The global rank of a peer; in a group of two it needs no name."""
    if peer is not None and peer < len(members):
        return members[peer]
    others = [member for member in members if member != rank]
    return others[0] if len(others) == 1 else None


def number_per_group(dump: Dump) -> Dump:
    """Give a recorder's entries with one counter for all groups a sequence for each group.

    Entries of a wrapped ring buffer are dropped: how many came before them is not known.
    """
    if dump.entries and dump.entries[0].record > 0:
        return replace(dump, entries=())
    count: Counter[tuple[int, GroupName, bool]] = Counter()
    entries = []
    for entry in dump.entries:
        p2p = entry.operation.direction is not None
        count[entry.pg_id, entry.group, p2p] += 1
        sequence = count[entry.pg_id, entry.group, p2p]
        entries.append(replace(entry, sequence=sequence, is_p2p=p2p))
    return replace(dump, entries=tuple(entries))


def _use_counters(frontier: Frontier) -> None:
    """Place ranks by the counters of a group where no entry of theirs is left.

    The counters of a group in which anybody sent or received mix two numberings and say nothing.
    nccl2 and gloo count operations: their numbers become sequences only through an entry of some
    member with the same number.
    """
    mixed = {
        group for standing in frontier.standings.values() for group, _, _ in standing.transfers
    }
    translation: dict[int, dict[int, int]] = {}
    for rank, joined in frontier.roster.status.items():
        standing = frontier.standings[rank]
        counting = MEANINGS[standing.backend].counting
        for number, group in joined.items():
            status = frontier.dumps[rank].status[number]
            if group in standing.positions or group in mixed or counting is Counting.NOTHING:
                continue
            enqueued, completed = status.enqueued, status.completed
            if counting is Counting.OPERATIONS:
                if group not in translation:
                    translation[group] = _operation_numbers(frontier, group)
                enqueued = translation[group].get(-1 if enqueued is None else enqueued)
                completed = translation[group].get(-1 if completed is None else completed)
            enqueued = enqueued if status.enqueued is not None else 0
            completed = completed if status.completed is not None else 0
            if enqueued is None:
                continue
            position = Position(enqueued=enqueued, completed=completed)
            if completed is not None and completed < enqueued:
                position.pending_sequence = completed + 1
            standing.positions[group] = position


def _operation_numbers(frontier: Frontier, group: int) -> dict[int, int]:
    """Map the operation numbers of a group to sequences, through the entries of its members."""
    found: dict[int, int] = {}
    for rank in frontier.roster.groups[group].members:
        for slot, index in frontier.roster.of.get(rank, {}).items():
            if index == group:
                for entry in frontier.dumps[rank].entries:
                    if entry.pg_id == slot[0] and entry.group == slot[1]:
                        found[entry.op_id] = entry.sequence
                return found
    return found


def _suspect_unproven(frontier: Frontier) -> None:
    """Take for pending what a recorder cannot show to be finished and some member did not enter.

    gloo shows an operation that timed out like one that finished. If any of its operations is
    visibly pending, the dumps were taken during the hang and need no such guess.
    """
    suspects: list[tuple[int, int]] = []
    for group in range(len(frontier.roster.groups)):
        positions = frontier.positions(group)
        if any(MEANINGS[frontier.standings[r].backend].completed_shown for r in positions):
            continue
        if any(p.pending is not None for p in positions.values()):
            return
        known = [p.enqueued for p in positions.values() if p.enqueued is not None]
        missing = set(frontier.roster.groups[group].members) & set(frontier.standings)
        lowest = 0 if missing - set(positions) else min(known, default=0)
        suspects += [
            (rank, group)
            for rank, position in positions.items()
            if position.enqueued is not None and position.enqueued > lowest
        ]
        for rank, index in suspects:
            if index == group:
                positions[rank].pending_sequence = lowest + 1
    for rank, group in suspects:
        position = frontier.standings[rank].positions[group]
        position.completed = (position.pending_sequence or 1) - 1
        position.pending = _entry_at(frontier, rank, group, position.pending_sequence or 0)


def _entry_at(frontier: Frontier, rank: int, group: int, sequence: int) -> Entry | None:
    """Return a rank's entry of a collective, None if the ring buffer no longer holds it."""
    for entry in frontier.dumps[rank].entries:
        if entry.sequence == sequence and not entry.is_p2p:
            slot = (entry.pg_id, entry.group)
            if frontier.roster.of[rank][slot] == group:
                return entry
    return None
