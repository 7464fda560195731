"""One dump a rank: which of several is used, and how those of two recorders become one.

A process has a recorder for each backend, and a job with gloo and NCCL groups leaves two dumps a
rank. A rank may wait in one of them for a rank that waits in the other, so they belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from keepstep.diagnosis import words
from keepstep.recorder.meaning import Progress, progress
from keepstep.recorder.model import Backend, Dump, Entry, GroupName, RankDump, State

OTHER_RECORDER = 1_000_000  # added to group numbers of the next recorder: they count on their own


def one_each(dumps: Iterable[RankDump]) -> tuple[dict[int, Dump], tuple[str, ...]]:
    """Return one dump for each rank, and sentences about what was left out.

    Of several attempts the newest counts; of several dumps of one recorder the newest.
    """
    items = list(dumps)
    notes = []
    nameless = sum(item.rank is None for item in items)
    if nameless:
        notes.append(f"{nameless} dumps do not say whose they are and were left out.")
    attempts = {item.attempt for item in items}
    if len(attempts) > 1:
        newest = max(items, key=_age).attempt
        items = [item for item in items if item.attempt == newest]
        notes.append(f"There are {len(attempts)} attempts; this is about the newest ({newest}).")
    found: dict[int, dict[Backend, list[RankDump]]] = {}
    for item in items:
        if item.rank is not None:
            found.setdefault(item.rank, {}).setdefault(item.dump.backend, []).append(item)
    several = sorted(r for r, own in found.items() if any(len(same) > 1 for same in own.values()))
    if several:
        notes.append(f"Of {words.ranks(several)} there are several dumps; the newest was used.")
    chosen = {
        rank: {backend: max(same, key=_age).dump for backend, same in sorted(own.items())}
        for rank, own in sorted(found.items())
    }
    entries: Counter[Backend] = Counter()
    for own in chosen.values():
        for backend, dump in own.items():
            entries[backend] += len(dump.entries)
    first = min(entries, key=lambda backend: (-entries[backend], backend), default=Backend.UNKNOWN)
    return {rank: _join(own, first) for rank, own in chosen.items()}, tuple(notes)


def _age(item: RankDump) -> tuple[int, int, str]:
    entries = item.dump.entries
    newest = (entries[-1].created_ns or 0) if entries else 0
    return newest, len(entries), str(item.path)


def _join(own: dict[Backend, Dump], first: Backend) -> Dump:
    """Join the dumps of a rank's recorders into one that reads like the first's."""
    used = {backend: dump for backend, dump in own.items() if dump.entries}
    if len(used) < 2:
        return next(iter(used.values()), next(iter(own.values())))
    main = used.pop(first) if first in used else used.pop(min(used))
    entries = list(main.entries)
    groups = list(main.groups)
    for place, (backend, dump) in enumerate(used.items(), start=1):
        names: dict[GroupName, GroupName] = {}
        for group in dump.groups:
            groups.append(replace(group, name=_named(group.name, backend, names)))
        entries += [
            _translated(entry, backend, place, _named(entry.group, backend, names))
            for entry in dump.entries
        ]
    entries.sort(key=lambda entry: (entry.created_ns or 0, entry.pg_id, entry.record))
    start = min(entry.record for entry in entries)
    renumbered = tuple(replace(entry, record=start + at) for at, entry in enumerate(entries))
    return replace(main, entries=renumbered, groups=tuple(groups))


def _named(name: GroupName, backend: Backend, names: dict[GroupName, GroupName]) -> GroupName:
    """One group has a communicator for each backend: they share a name and nothing else."""
    if name not in names:
        names[name] = GroupName(f"{name.name} ({backend})", name.description)
    return names[name]


def _translated(entry: Entry, backend: Backend, place: int, group: GroupName) -> Entry:
    pending = progress(entry, backend) in (Progress.PENDING, Progress.RUNNING, Progress.GIVEN_UP)
    return replace(
        entry,
        pg_id=entry.pg_id + place * OTHER_RECORDER,
        group=group,
        state=State.SCHEDULED if pending else State.COMPLETED,
        retired=not pending,
    )
