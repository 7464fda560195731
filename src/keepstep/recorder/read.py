"""Reading dumps: one file, or a tree of folders and archives.

Nothing in a file is executed, and nothing that a file holds raises an exception: what cannot be
used becomes a finding. The result does not depend on the order in which a file system lists files.
"""

from __future__ import annotations

import gc
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.recorder import archive, limits, place, pool
from keepstep.recorder.build import Builder, findings
from keepstep.recorder.child import printable
from keepstep.recorder.entries import newest_ns, outline
from keepstep.recorder.model import Backend, Dump, Entry, Finding, GroupName, RankDump, Severity
from keepstep.recorder.plain import too_large


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tree holds: the usable dumps and everything that a reader must know about it."""

    dumps: tuple[RankDump, ...]  # by attempt, rank and backend; each of these has one dump
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class FileReading:
    """What one file holds; without a dump, the findings say why."""

    dump: Dump | None
    findings: tuple[Finding, ...]


def read_file(path: Path | str) -> FileReading:
    """Read one dump.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
    """
    path = Path(path)
    _must_exist(path)
    tree = _Tree(path)
    tree.add_file(path, (path.name,))
    loaded = tree.load(workers=1)
    return FileReading(loaded[0].dump if len(loaded) == 1 else None, tree.sorted_findings())


def read_tree(path: Path | str, *, workers: int | None = None) -> Reading:
    """Read every dump below ``path``: a folder, an archive (.tar, .tar.gz, .tgz, .zip) or a file.

    ``workers`` is the number of reading processes, by default one per usable processor.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
    """
    path = Path(path)
    _must_exist(path)
    tree = _Tree(path)
    tree.collect()
    with _no_garbage_collection():
        loaded = tree.load(workers)
        dumps = _Attribution(loaded, tree.findings).rank_dumps()
    if not dumps:
        tree.find("no-dump", str(path), "no usable dump was found here", Severity.ERROR)
    return Reading(dumps, tree.sorted_findings())


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; wanted: a dump, a folder or an archive of dumps"
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector the millions of new objects, of which none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A dump and where it was found."""

    dump: Dump
    path: Path
    parts: place.Parts


class _Tree:
    """The files to read and what was found about them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.findings: list[Finding] = []
        self._tasks: list[pool.Task] = []
        self._parts: list[place.Parts] = []

    def find(self, code: str, path: str, text: str, severity: Severity) -> None:
        self.findings.append(Finding(code, printable(path), text, severity))

    def sorted_findings(self) -> tuple[Finding, ...]:
        return tuple(sorted(set(self.findings), key=lambda f: (f.path, f.code, f.text)))

    def collect(self) -> None:
        """List the files of the tree in the order of their names."""
        if not self.root.is_dir():
            self.add_file(self.root, (self.root.name,))
            return
        for folder, folders, names in os.walk(self.root, onerror=self._unreadable_folder):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                if len(self._tasks) == limits.TREE_FILES:
                    text = f"more than {limits.TREE_FILES} files; the rest is not read"
                    self.find("too-large", str(self.root), text, Severity.ERROR)
                    return
                self.add_file(path, path.relative_to(self.root).parts)

    def _unreadable_folder(self, error: OSError) -> None:
        path, why = str(error.filename), error.strerror or str(error)
        self.find("unreadable", path, f"the folder cannot be listed: {why}", Severity.ERROR)

    def add_file(self, path: Path, parts: place.Parts) -> None:
        """Plan to read a file, or say at once why not."""
        try:
            status = path.stat()
        except OSError as error:
            why = error.strerror or str(error)
            self.find("unreadable", str(path), why, Severity.ERROR)
            return
        is_archive = archive.is_archive(path.name)
        if not stat.S_ISREG(status.st_mode):
            text = "a folder behind a link, a pipe or a device; it is not read"
            self.find("not-a-file", str(path), text, Severity.NOTE)
        elif status.st_size > limits.FILE_BYTES and not is_archive:
            refusal = too_large(status.st_size)
            self.find(refusal.code, str(path), refusal.text, refusal.severity)
        else:
            self._tasks.append(pool.Task(str(path), is_archive))
            self._parts.append(parts)

    def load(self, workers: int | None) -> list[_Loaded]:
        """Read all planned files; return the dumps in the order of their paths."""
        builder = Builder()
        loaded = []
        for answer in pool.read(self._tasks, workers):
            path, parts = Path(self._tasks[answer.task].path), self._parts[answer.task]
            if answer.member is not None:
                parts = (*parts, *archive.parts(answer.member))
                path = path.joinpath(*archive.parts(answer.member))
            if not isinstance(answer.content, pool.Refusal):
                loaded.append(_Loaded(builder.dump(answer.content), path, parts))
                self.findings.extend(findings(answer.content, printable(str(path))))
            elif answer.content.code != "folder":
                refusal = answer.content
                severity = refusal.severity
                if refusal.code == "foreign" and not place.looks_like_dump(parts[-1]):
                    severity = Severity.NOTE
                self.find(refusal.code, str(path), refusal.text, severity)
        return sorted(loaded, key=lambda item: item.parts)


class _Attribution:
    """Decides which rank of which attempt each dump belongs to, and which one counts."""

    def __init__(self, loaded: list[_Loaded], found: list[Finding]) -> None:
        self._loaded = loaded
        self._found = found
        self._members: dict[int, frozenset[int]] = {}  # by identity: equal lists are one object

    def rank_dumps(self) -> tuple[RankDump, ...]:
        places = place.places([item.parts for item in self._loaded])
        claimed = [
            (item, self._claim(item, where))
            for item, where in zip(self._loaded, places, strict=True)
        ]
        kept = self._without_duplicates(_attempts_apart(claimed))
        return tuple(sorted(kept, key=_order))

    def _note(self, code: str, path: Path, text: str, severity: Severity) -> None:
        self._found.append(Finding(code, printable(str(path)), text, severity))

    def _claim(self, item: _Loaded, where: place.Place) -> RankDump:
        """Return the dump with its rank: the path says it, the groups must agree."""
        possible = self._possible_ranks(item.dump)
        rank = where.ranks[0] if where.ranks else None
        if possible is not None:
            fitting = [number for number in where.ranks if number in possible]
            if fitting:
                rank = fitting[0]
            elif not where.ranks and len(possible) == 1:
                (rank,) = possible
                text = f"the name says no rank; the groups in it have rank {rank} in common"
                self._note("rank-from-groups", item.path, text, Severity.NOTE)
            elif rank is not None:
                text = f"the name says rank {rank}, which is not a member of the groups in the dump"
                self._note("wrong-rank", item.path, text, Severity.WARNING)
        if rank is None:
            text = "neither its name nor its groups say which rank wrote it"
            self._note("rank-unknown", item.path, text, Severity.WARNING)
        elif other := _contradicting_group(item.dump, rank):
            text = f"its send and receive operations in {other} are not those of rank {rank}"
            self._note("wrong-rank", item.path, text, Severity.WARNING)
        return RankDump(
            dump=item.dump, path=item.path, rank=rank, host=where.host, attempt=where.attempt
        )

    def _possible_ranks(self, dump: Dump) -> frozenset[int] | None:
        """Return the ranks that are in every group of the dump, None where groups say nothing."""
        members = []
        for group in dump.groups:
            if group.ranks is not None:
                if id(group.ranks) not in self._members:
                    self._members[id(group.ranks)] = frozenset(group.ranks)
                members.append(self._members[id(group.ranks)])
        # The smallest first: an intersection goes over that.
        return frozenset.intersection(*sorted(members, key=len)) if members else None

    def _without_duplicates(self, claimed: Iterable[RankDump]) -> Iterator[RankDump]:
        by_owner: dict[tuple[str, int | None], list[RankDump]] = defaultdict(list)
        for claim in claimed:
            by_owner[(claim.attempt, claim.rank)].append(claim)
        for (_, rank), same_rank in by_owner.items():
            if rank is None:
                yield from same_rank
                continue
            by_backend: dict[Backend, list[RankDump]] = defaultdict(list)
            for claim in same_rank:
                by_backend[claim.dump.backend].append(claim)
            speaking = [claim for claim in same_rank if claim.dump.entries or claim.dump.status]
            for claims in by_backend.values():
                best = max(claims, key=_worth) if len(claims) > 1 else claims[0]
                if speaking and all(best is not claim for claim in speaking):
                    self._drop(best, speaking[0])
                else:
                    yield best
                for claim in claims:
                    if claim is not best:
                        self._drop(claim, best)

    def _drop(self, claim: RankDump, better: RankDump) -> None:
        if _same_record(claim.dump, better.dump):
            text, severity = f"says the same as {better.path}, which is used", Severity.NOTE
        elif not claim.dump.entries:
            text, severity = f"holds nothing; {better.path} is used for this rank", Severity.NOTE
        else:
            text = f"another dump of rank {claim.rank} than {better.path}, which is newer and used"
            severity = Severity.WARNING
        self._note("duplicate", claim.path, text, severity)


def _order(claim: RankDump) -> tuple[str, int, str, str]:
    rank = limits.RANK if claim.rank is None else claim.rank
    return claim.attempt, rank, claim.dump.backend, str(claim.path)


def _contradicting_group(dump: Dump, rank: int) -> str:
    """Return a group in which point-to-point operations name another rank as their own."""
    ranks = {group.name: group.ranks for group in dump.groups if group.ranks is not None}
    own: set[tuple[GroupName, int]] = {
        (call.group, call.operation.own)
        for call in outline(dump.entries).calls
        if call.operation.own is not None
    }
    wrong = [
        name.name
        for name, number in own
        if name in ranks and (number >= len(ranks[name]) or sorted(ranks[name])[number] != rank)
    ]
    return f"group {min(wrong)!a}" if wrong else ""


def _worth(claim: RankDump) -> tuple[int, bool, str]:
    """Order dumps of one rank and backend: the newest counts, of equal ones that with stacks."""
    entries = claim.dump.entries
    return newest_ns(entries), any(entry.stack for entry in entries), str(claim.path)


def _same_record(one: Dump, other: Dump) -> bool:
    """Tell whether two dumps say the same; one may lack stacks, as JSON does."""

    def bare(entry: Entry) -> Entry:
        return replace(entry, stack=())

    return (
        len(one.entries) == len(other.entries)
        and one.status == other.status
        and all(bare(a) == bare(b) for a, b in zip(one.entries, other.entries, strict=True))
    )


def _attempts_apart(claimed: list[tuple[_Loaded, RankDump]]) -> Iterator[RankDump]:
    """Make attempts of folders that hold different dumps of the same rank and backend.

    Two hosts of one attempt cannot both have rank 3; what looked like hosts are attempts then.
    """
    by_attempt: dict[str, list[tuple[place.Parts, RankDump]]] = defaultdict(list)
    for item, claim in claimed:
        by_attempt[claim.attempt].append((place.folder(item.parts), claim))
    for attempt, members in by_attempt.items():
        depth = _parting_depth(members)
        for folders, claim in members:
            if depth is None:
                yield claim
                continue
            part = folders[depth] if depth < len(folders) else "."
            host = None if claim.host == part else claim.host
            yield replace(claim, attempt="/".join(filter(None, (attempt, part))), host=host)


def _parting_depth(members: list[tuple[place.Parts, RankDump]]) -> int | None:
    """Return how deep the folders of two different dumps of one rank part, None without such."""
    seen: dict[tuple[int | None, Backend], tuple[place.Parts, RankDump]] = {}
    depths = []
    for folders, claim in members:
        if claim.rank is None or not claim.dump.entries:
            continue
        first_folders, first = seen.setdefault((claim.rank, claim.dump.backend), (folders, claim))
        if first_folders != folders and not _same_record(first.dump, claim.dump):
            pairs = zip(first_folders, folders, strict=False)
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            depths.append(min(len(first_folders), len(folders)) if same is None else same)
    return min(depths, default=None)
