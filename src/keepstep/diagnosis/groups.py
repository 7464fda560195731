"""Which process group an entry belongs to, the same for every rank.

A group is its name *and* its members: names alone repeat (groups created locally, several default
groups), and a process's own number of a group means nothing to another process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from keepstep.diagnosis.words import rank_list
from keepstep.recorder.model import Dump, GroupName

DEFAULT = "default_pg"  # torch's description of the group of all ranks
NO_DESCRIPTION = ("", "undefined")  # torch writes "undefined" where the caller gave none


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of the job. ``members`` are global ranks in the order of group ranks."""

    name: str
    description: str
    members: tuple[int, ...]
    whole: bool  # every rank of the job is a member

    @property
    def label(self) -> str:
        """What a person reads: the description, or the name, and the members of a sub-group."""
        text = self.name if self.description in NO_DESCRIPTION else self.description
        return text if self.whole else f"{text} [{rank_list(self.members)}]"


@dataclass(slots=True)
class Roster:
    """All groups of a job, and where each process's own numbers lead."""

    groups: list[ProcessGroup] = field(default_factory=list)
    of: dict[int, dict[tuple[int, GroupName], int]] = field(default_factory=dict)
    """Rank, then the process's number and name of a group, to an index into ``groups``."""
    status: dict[int, dict[int, int]] = field(default_factory=dict)
    """Rank, then the process's number of a group, to an index; only where it is sure."""


Slots = Mapping[int, Iterable[tuple[int, GroupName]]]


def build_roster(dumps: Mapping[int, Dump], slots: Slots, everyone: frozenset[int]) -> Roster:
    """Give every (process number, name) pair that the entries of a rank use its group.

    Args:
        dumps: by rank.
        slots: by rank, the pairs that its entries use.
        everyone: all ranks of the job.
    """
    users: dict[GroupName, set[int]] = {}
    for rank, pairs in slots.items():
        for _, name in pairs:
            users.setdefault(name, set()).add(rank)
    roster = Roster()
    index: dict[tuple[str, tuple[int, ...], int], int] = {}
    known: dict[tuple[str, int, int], int] = {}  # the same by the identity of a list of members

    def group(name: GroupName, listed: tuple[int, ...] | None, ordinal: int) -> int:
        if listed is None:
            return find(name, listed, ordinal)
        key = (name.name, id(listed), ordinal)
        if key not in known:
            known[key] = find(name, listed, ordinal)
        return known[key]

    def find(name: GroupName, listed: tuple[int, ...] | None, ordinal: int) -> int:
        members = listed
        if members is None:
            default = name.description == DEFAULT
            members = tuple(sorted(everyone if default else users.get(name, ())))
        key = (name.name, members, ordinal)
        if key not in index:
            index[key] = len(roster.groups)
            whole = frozenset(members) == everyone
            roster.groups.append(ProcessGroup(name.name, name.description, members, whole))
        return index[key]

    for rank, dump in sorted(dumps.items()):
        listed = {item.name.name: item.ranks for item in dump.groups}
        seen: Counter[str] = Counter()
        mine = roster.of[rank] = {}
        for number, name in sorted(slots[rank], key=lambda pair: (pair[0], pair[1].name)):
            mine[number, name] = group(name, listed.get(name.name), seen[name.name])
            seen[name.name] += 1
        joined = join_status(dump, {number: name.name for number, name in mine})
        names = {item.name.name: item.name for item in dump.groups}
        roster.status[rank] = {
            number: group(names[name], listed[name], 0) for number, name in joined.items()
        }
    return roster


def join_status(dump: Dump, used: Mapping[int, str]) -> dict[int, str]:
    """Give each numbered status its group's name, or nothing where that would be a guess.

    Both the process's numbers and torch's numeric names count up as groups are created, so the two
    sorted lists run side by side. Hashed names have no order, and a list that disagrees with the
    entries (``used``: the process's number to the name) is not trusted at all.
    """
    names = [item.name.name for item in dump.groups]
    if not all(name.isdecimal() for name in names) or len(names) != len(dump.status):
        return {}
    joined = dict(zip(sorted(dump.status), sorted(names, key=int), strict=True))
    if any(joined.get(number, name) != name for number, name in used.items()):
        return {}
    return joined


def listed_ranks(dumps: Iterable[Dump]) -> set[int]:
    """Return every rank that a group lists. Equal lists are one object: each is gone over once."""
    lists = {id(item.ranks): item.ranks or () for dump in dumps for item in dump.groups}
    return set().union(*lists.values())


def all_ranks(dumps: Mapping[int, Dump], others: Iterable[int]) -> frozenset[int]:
    """Every rank that a dump or a group names; without a list of members, from 0 to the highest."""
    known = set(dumps) | set(others) | listed_ranks(dumps.values())
    unlisted = any(group.ranks is None for dump in dumps.values() for group in dump.groups)
    if unlisted and known:
        known.update(range(max(known) + 1))
    return frozenset(known)
