"""What a worker leaves with its agent, so that it outlives the worker: rank records and snapshots.

The vault is a folder in memory (``/dev/shm`` where there is one) that the agent makes. A *rank
record* is the per-rank state (generators, data loader) at one point: ``count`` steps committed. Two
kinds are kept for the last steps, so that the last two commits are there while a step runs:

* commit: written when step ``count`` was complete;
* entry: written when the rank entered the last collective of that step. If the rank dies between
  the two, the entry record stands in, provided that in the step before both were equal.

Mostly they are equal, and then the entry is only *confirmed*: its count is stored in a small file,
and readers take it for both.

Records carry CRCs, so one that was cut short by a kill is not mistaken for a whole one. In most
steps only the sample notes before the state change, so the state has a place of its own and
stays where it lies. Only the standard library is needed here: the agent reads what the worker
wrote.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from array import array
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from keepstep.runtime.samples import RUN_LENGTH, Run

ENTRIES, COMMITS = 3, 2  # of the last steps; an entry that was confirmed is needed like a commit
SLOTS = ENTRIES + COMMITS
_CONFIRMED = SLOTS  # the number of the file with the counts of confirmed entries
_COUNTS = struct.Struct(f"={ENTRIES}q")  # one for each slot of an entry
# magic, generation, count, is_commit, sizes: room, notes, state; crc32 of the state
_FACTS = struct.Struct("<4sqqqqqqI")
_CRC = struct.Struct("<I")  # of the facts and the notes
_MAGIC = b"KSR3"
_ROOM = 512  # bytes for facts, CRC and notes come in multiples of this; the state follows
_NAME = re.compile(r"(rank/\d+/\d+|mirror/\d+|snapshot/\d+/(payload|rank/\d+))\Z")
_NOTES = struct.Struct("=q")  # how many 8-byte integers of sample notes come before the state
_ONE_RUN = struct.Struct(f"={1 + RUN_LENGTH}q")  # the same with one run
_UNFINISHED = ".tmp"  # in the name of what its writer, perhaps killed, has not completed
_PART = struct.Struct("<16sq")  # name and length of one file in a mirror


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """Per-rank state after ``count`` committed steps."""

    count: int
    is_commit: bool
    data: bytes  # the sample notes, then the state
    generation: int = 0  # in which it was left; 0: before the first


class RankRecordWriter:
    """The worker's side; one open file a slot, so that a write is a single system call."""

    def __init__(self, vault: Path, wid: int) -> None:
        """Open the slots of worker ``wid``."""
        flags = os.O_CREAT | os.O_WRONLY
        self._files = [os.open(_slot_path(vault, wid, slot), flags, 0o600) for slot in range(SLOTS)]
        self._states: list[bytes | None] = [None] * SLOTS  # what lies there
        self._rooms = [0] * SLOTS
        self._generation = 0
        self._state, self._crc = b"", zlib.crc32(b"")  # the newest and its CRC
        confirmed = _slot_path(vault, wid, _CONFIRMED)
        confirmed.write_bytes(_COUNTS.pack(*[-1] * ENTRIES))
        with open(confirmed, "r+b") as file:
            self._confirmed = memoryview(mmap.mmap(file.fileno(), _COUNTS.size)).cast("q")

    def begin(self, generation: int, count: int, *, state: bytes, notes: bytes = b"") -> None:
        """Leave the first commit record of a generation; all others count no more."""
        self._generation = generation
        for slot in range(ENTRIES):
            self._confirmed[slot] = -1
        self.write(count, is_commit=True, state=state, notes=notes)
        for slot in range(SLOTS):
            if slot != _slot(count, is_commit=True):
                os.ftruncate(self._files[slot], 0)
                self._states[slot] = None

    def confirm(self, count: int) -> None:
        """Say that the entry record of ``count`` steps is their commit record as well."""
        self._confirmed[count % ENTRIES] = count

    def forget_entry(self, count: int) -> None:
        """Drop the entry record of ``count`` steps: the state has changed, and nobody knows how."""
        slot = _slot(count, is_commit=False)
        os.ftruncate(self._files[slot], 0)
        self._states[slot] = None

    def write(self, count: int, *, is_commit: bool, state: bytes, notes: bytes = b"") -> None:
        """Write one record over the oldest of its kind.

        A ``state`` that is the same object as that in its place is not written again.
        """
        if state is not self._state:
            self._state, self._crc = state, zlib.crc32(state)
        room = _room_for(notes)
        sizes = room, len(notes), len(state)
        head = _FACTS.pack(_MAGIC, self._generation, count, is_commit, *sizes, self._crc)
        head += notes
        front = _CRC.pack(zlib.crc32(head)) + head
        slot = _slot(count, is_commit=is_commit)
        if self._states[slot] is not state or self._rooms[slot] != room:
            self._states[slot], self._rooms[slot] = state, room
            os.pwritev(self._files[slot], (front.ljust(room, b"\0"), state), 0)
        else:
            os.pwrite(self._files[slot], front, 0)


def _room_for(notes: bytes) -> int:
    """Return where the state begins."""
    return -(-(_CRC.size + _FACTS.size + len(notes)) // _ROOM) * _ROOM


def _slot(count: int, *, is_commit: bool) -> int:
    return ENTRIES + count % COMMITS if is_commit else count % ENTRIES


def _slot_path(vault: Path, wid: int, slot: int) -> Path:
    return vault / f"rank-{wid}.{slot}"


def read_records(vault: Path, wid: int) -> list[RankRecord]:
    """Return the whole records of worker ``wid`` of its newest generation, oldest first."""
    found = []
    for slot in range(SLOTS):
        try:
            raw = _slot_path(vault, wid, slot).read_bytes()
        except OSError:
            continue
        record = _parse(raw)
        if record is not None:
            found.append(record)
    generation = newest_generation(found)
    found = [each for each in found if each.generation == generation]
    confirmed = _confirmed(vault, wid)
    found += [
        replace(each, is_commit=True)
        for each in found
        if not each.is_commit and each.count in confirmed
    ]
    return sorted(found, key=lambda record: (record.count, record.is_commit))


def newest_generation(records: list[RankRecord]) -> int:
    """Return the generation in which the newest of ``records`` was left; -1 where there is none."""
    return max((record.generation for record in records), default=-1)


def _confirmed(vault: Path, wid: int) -> tuple[int, ...]:
    try:
        return _COUNTS.unpack(_slot_path(vault, wid, _CONFIRMED).read_bytes())
    except (OSError, struct.error):
        return ()


def _parse(raw: bytes) -> RankRecord | None:
    facts_at, notes_at = _CRC.size, _CRC.size + _FACTS.size
    if len(raw) < notes_at:
        return None
    magic, generation, count, is_commit, room, noted, length, crc = _FACTS.unpack_from(
        raw, facts_at
    )
    if magic != _MAGIC or min(room, noted, length) < 0 or len(raw) < room + length:
        return None
    state = raw[room : room + length]
    head = raw[facts_at : notes_at + noted]
    if (zlib.crc32(head),) != _CRC.unpack_from(raw) or zlib.crc32(state) != crc:
        return None
    data = raw[notes_at:][:noted] + state
    return RankRecord(count=count, is_commit=bool(is_commit), data=data, generation=generation)


def dump_path(vault: Path, wid: int, generation: int) -> Path:
    """Return where worker ``wid`` leaves its recorder dump in a generation."""
    return vault / f"dump-{wid}.{generation}"


def stacks_path(vault: Path, wid: int, generation: int) -> Path:
    """Return where the stacks of all its threads lie."""
    return vault / f"stacks-{wid}.{generation}"


def pack_notes(runs: list[Run]) -> bytes:
    """Return the sample notes of a worker as they precede the per-rank state in a record."""
    if len(runs) == 1:  # mostly: a generation is one run
        return _ONE_RUN.pack(RUN_LENGTH, *runs[0])
    notes = array("q", chain.from_iterable(runs))
    return _NOTES.pack(len(notes)) + notes.tobytes()


def state_in(data: bytes) -> bytes:
    """Return the per-rank state in a record's data."""
    (count,) = _NOTES.unpack_from(data)
    return data[_NOTES.size + 8 * count :]


def _runs_in(data: bytes) -> list[Run]:
    (count,) = _NOTES.unpack_from(data)
    notes = array("q", data[_NOTES.size : _NOTES.size + 8 * count]).tolist()
    return [notes[start : start + RUN_LENGTH] for start in range(0, count, RUN_LENGTH)]


def sample_rows(vault: Path) -> list[list[int]]:
    """Return the sample notes of every worker that left records here, for ``samples.merge``."""
    wids = {int(path.name.split("-")[1].split(".")[0]) for path in vault.glob("rank-*")}
    rows = []
    for wid in sorted(wids):
        for record in read_records(vault, wid):
            rows += [[wid, number, *run] for number, run in enumerate(_runs_in(record.data))]
    return rows


def known_counts(records: list[RankRecord]) -> tuple[int, int]:
    """Return (newest committed count, newest count for which the per-rank state is known).

    The second is one more than the first when an entry record of the next step exists and entry
    and commit were equal in the newest committed step: then nothing per-rank changes after the
    last collective of a step. -1 where nothing is known.
    """
    commits = {record.count: record.data for record in records if record.is_commit}
    entries = {record.count: record.data for record in records if not record.is_commit}
    if not commits:
        return -1, -1
    newest = max(commits)
    if newest + 1 in entries and entries.get(newest) == commits[newest]:
        return newest, newest + 1
    return newest, newest


def find_record(records: list[RankRecord], count: int) -> bytes | None:
    """Return the per-rank state after ``count`` steps; a commit record is preferred."""
    fitting = [record for record in records if record.count == count]
    return max(fitting, key=lambda record: record.is_commit).data if fitting else None


def write_blob(vault: Path, name: str, parts: list[bytes | memoryview]) -> None:
    """Write ``parts`` under ``name``, whole or not at all (memory files need no fsync)."""
    path = _blob_path(vault, name)
    temporary = path.with_name(f"{path.name}{_UNFINISHED}{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_blob(vault: Path, name: str) -> bytes | None:
    """Return what lies under ``name`` (a rank record's data or a snapshot), or None.

    Names come from other hosts: anything but the known patterns is refused.
    """
    if not _NAME.match(name):
        return None
    if name.startswith("mirror/"):
        return _pack_mirror(vault, int(name.split("/")[1]))
    if name.startswith("rank/"):
        _, wid, count = name.split("/")
        return find_record(read_records(vault, int(wid)), int(count))
    try:
        return _blob_path(vault, name).read_bytes()
    except OSError:
        return None


def _pack_mirror(vault: Path, wid: int) -> bytes:
    """Return what another host keeps of one worker: its records and its newest snapshot record."""
    names = [_slot_path(vault, wid, slot).name for slot in [*range(SLOTS), _CONFIRMED]]
    snapshots = sorted(vault.glob(f"snapshot-*.rank-{wid}"), key=_snapshot_count)
    names += [path.name for path in snapshots[-1:]]
    parts = []
    for name in names:
        try:
            data = (vault / name).read_bytes()
        except OSError:
            continue
        parts.append(_PART.pack(_short(name), len(data)) + data)
    return b"".join(parts)


def _short(name: str) -> bytes:
    """Return a file's name in a mirror: the slot of a record, or the count of a snapshot."""
    if name.startswith("rank-"):
        return f"r{name.rpartition('.')[2]}".encode()
    return f"s{_snapshot_count(Path(name))}".encode()


def store_mirror(vault: Path, wid: int, packed: bytes) -> None:
    """Store what ``mirror/WID`` of another vault returned as if the worker were ours."""
    start = 0
    while start + _PART.size <= len(packed):
        raw_name, length = _PART.unpack_from(packed, start)
        start += _PART.size
        name, data = raw_name.rstrip(b"\0").decode(), packed[start : start + length]
        start += length
        kind, number = name[:1], int(name[1:])
        if kind == "r" and number <= _CONFIRMED:
            target = _slot_path(vault, wid, number)
        else:
            target = _blob_path(vault, f"snapshot/{number}/rank/{wid}")
        temporary = target.with_suffix(".mirror")
        temporary.write_bytes(data)
        temporary.rename(target)


def _snapshot_count(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0])


def drop_snapshots(vault: Path, newest: int, kept: int) -> None:
    """Leave the ``kept`` newest snapshots up to that of ``newest`` steps.

    What counts is what lies in the vault, not what the caller took itself: who has just taken
    somebody's place took none of those to which the job may have to go back.
    """
    found = list(vault.glob("snapshot-*"))
    whole = [path for path in found if _UNFINISHED not in path.name]
    counts = sorted({count for path in whole if (count := _snapshot_count(path)) <= newest})
    keep = set(counts[-kept:])
    for path in found:
        if _snapshot_count(path) not in keep:
            path.unlink(missing_ok=True)


def _blob_path(vault: Path, name: str) -> Path:
    kind, count, rest = name.split("/", 2)
    return vault / f"{kind}-{count}.{rest.replace('/', '-')}"
