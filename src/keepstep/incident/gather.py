"""From a path to what a diagnosis may use: an incident of ours, or any folder of dumps."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.diagnosis.groups import listed_ranks
from keepstep.incident import ras, regular, stacks
from keepstep.incident.manifest import (
    DUMP,
    NAME,
    STACKS,
    Artifact,
    Manifest,
    ManifestError,
    RankFacts,
)
from keepstep.recorder import limits
from keepstep.recorder.model import Finding, RankDump, Severity
from keepstep.recorder.read import Reading, read_tree

LARGEST_NOTE = 64 << 20  # bytes of a manifest, a file with stacks or an answer of RAS
_LONGEST_ERROR = 200  # characters of an exception that a verdict shows
_RAISED = {"raise", "oom", "device"}  # kinds of a fault that are an exception of the step
_LARGEST = {DUMP: limits.FILE_BYTES, STACKS: LARGEST_NOTE}
_STACKS_NAME = re.compile(
    r"(?:py-?spy|stacks?|traceback).*?(?<![0-9])([0-9]{1,8})\.(?:json|txt|log)\Z", re.I
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One artifact of one rank: there, or missing with a reason."""

    rank: int
    kind: str
    file: str  # "" where it is missing
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Everything about one attempt."""

    attempt: str  # "" where there is one only
    evidence: Evidence
    arrivals: tuple[Arrival, ...]
    manifests: tuple[Manifest, ...] = ()


def gather(path: Path) -> tuple[Gathered, ...]:
    """Read an incident, each of a folder of incidents, or each attempt in a tree of dumps.

    They come in the order of their names. No link that leads out of ``path`` is followed.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        OSError: there was no room for the copies that are judged.
    """
    folders = manifest_folders(path)
    if folders:
        return (_incident("", folders),)
    incidents = [(folder.name, manifest_folders(folder)) for folder in _folders(path)]
    found = tuple(_incident(name, hosts) for name, hosts in incidents if hosts)
    return found or _plain(path)


def manifest_folders(path: Path) -> list[Path]:
    """Return the folders of an incident that hold a manifest: one for each host."""
    if _is_there(path / NAME):
        return [path]
    return [folder for folder in _folders(path) if _is_there(folder / NAME)]


def _is_there(file: Path) -> bool:
    """Return whether there is a file, a link or anything else of that name."""
    try:
        file.lstat()
    except OSError:
        return False
    return True


def _folders(path: Path) -> list[Path]:
    """Return the folders in ``path``, without links and without those still being written."""
    try:
        with os.scandir(path) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path / name for name in sorted(names) if not name.startswith(".")]


# --- incidents of ours --------------------------------------------------------------------------


def _incident(name: str, folders: list[Path]) -> Gathered:
    found = _Incident(name)
    for folder in folders:
        found.add(folder)
    return found.gathered()


class _Incident:
    """What the hosts of one incident wrote, added one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.manifests: list[Manifest] = []
        self.dumps: list[RankDump] = []
        self.arrivals: list[Arrival] = []
        self.findings: list[Finding] = []
        self.observations: dict[int, Observation] = {}

    def add(self, folder: Path) -> None:
        try:
            manifest = Manifest.from_json(regular.read(folder / NAME, LARGEST_NOTE))
        except (regular.NotReadError, ManifestError) as error:
            self._add_without_manifest(folder, str(error))
            return
        self.manifests.append(manifest)
        for facts in manifest.members:
            if facts.artifacts or facts.rank not in self.observations:
                self.observations[facts.rank] = _observation(facts, manifest.faults)
        with tempfile.TemporaryDirectory(prefix="keepstep-explain-") as copies:
            given: dict[str, tuple[RankFacts, Path]] = {}  # by name of the copy
            for facts in manifest.members:
                for artifact in facts.artifacts:
                    self._take(folder, facts, artifact, Path(copies), given)
            if given:
                self._read(Path(copies), given)

    def _add_without_manifest(self, folder: Path, why: str) -> None:
        """The dumps beside a manifest that cannot be used still tell something."""
        text = f"{why}; what lies beside it is used without it"
        self.findings.append(Finding("manifest", str(folder / NAME), text))
        for each in _plain(folder):
            self.dumps += [dataclasses.replace(d, attempt="") for d in each.evidence.dumps]
            self.arrivals += [arrival for arrival in each.arrivals if arrival.file]
            for found in each.evidence.findings:
                if found.severity is not Severity.NOTE and Path(found.path).name != NAME:
                    self.findings.append(found)
            for rank, seen in each.evidence.observations.items():
                self.observations.setdefault(rank, seen)

    def _take(
        self,
        folder: Path,
        facts: RankFacts,
        artifact: Artifact,
        copies: Path,
        given: dict[str, tuple[RankFacts, Path]],
    ) -> None:
        """Note whether an artifact arrived; use stacks at once, copy a dump for reading it."""
        rank, kind, file = facts.rank, artifact.kind, folder / artifact.file
        try:
            data = _checked(folder, artifact)
            copy = copies / f"recorder_rank_{rank}"
            if kind == DUMP and copy.name in given:
                raise regular.NotReadError(f"a second {kind} of this rank")
        except regular.NotReadError as error:
            problem = str(error)
            self.arrivals.append(Arrival(rank, kind, "", problem))
            if kind == DUMP:
                seen = self.observations[rank]
                self.observations[rank] = dataclasses.replace(seen, missing_dump=problem)
            return
        self.arrivals.append(Arrival(rank, kind, str(file), ""))
        if kind == STACKS:
            _add_stack(self.observations, rank, stacks.parse(data))
        elif kind == DUMP:
            copy.write_bytes(data)
            given[copy.name] = facts, file

    def _read(self, copies: Path, given: dict[str, tuple[RankFacts, Path]]) -> None:
        """Read the copies: exactly the bytes whose digest was compared, and no other file."""
        reading = read_tree(copies)
        for found in reading.findings:
            if Path(found.path).name in given:
                _, file = given[Path(found.path).name]
                self.findings.append(dataclasses.replace(found, path=str(file)))
        for dump in reading.dumps:
            facts, file = given[dump.path.name]
            owned = dataclasses.replace(dump, path=file, rank=facts.rank, host=facts.host)
            self.dumps.append(dataclasses.replace(owned, attempt=""))

    def gathered(self) -> Gathered:
        ranks = frozenset(facts.rank for each in self.manifests for facts in each.members)
        evidence = Evidence(
            dumps=tuple(self.dumps),
            observations=self.observations,
            expected_ranks=ranks or None,
            findings=tuple(self.findings),
        )
        return Gathered(
            attempt=self.name,
            evidence=evidence,
            arrivals=_sorted(self.arrivals),
            manifests=tuple(self.manifests),
        )


def _observation(facts: RankFacts, faults: Iterable[dict[str, Any]]) -> Observation:
    try:
        life = Life(facts.life)
    except ValueError:
        life = Life.UNKNOWN
    raised = next(
        (str(each.get("evidence", "")) for each in faults if _is_of(each, facts.rank)), ""
    )
    return Observation(
        life=life,
        why=facts.why,
        holds_gil=facts.holds_gil,
        step=facts.step,
        raised=" ".join(raised.split())[:_LONGEST_ERROR],
    )


def _is_of(fault: dict[str, Any], rank: int) -> bool:
    """Whether a fault is an exception that this rank's step raised by itself."""
    return fault.get("rank") == rank and fault.get("fault") in _RAISED


def _checked(folder: Path, artifact: Artifact) -> bytes:
    """Return the content of an artifact, as its manifest describes it.

    Raises:
        NotReadError: it is missing, or not what the manifest describes.
    """
    name = artifact.file
    if not name:
        raise regular.NotReadError(artifact.reason or "missing, and nothing says why")
    if "/" in name or name.startswith("."):
        raise regular.NotReadError(f"the manifest names {name!a}, which is no file of its folder")
    data = regular.read(folder / name, _LARGEST.get(artifact.kind, 0))
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise regular.NotReadError("changed since the manifest was written: its SHA-256 differs")
    return data


def _add_stack(observations: dict[int, Observation], rank: int, main: stacks.MainThread) -> None:
    seen = observations.get(rank, Observation())
    observations[rank] = dataclasses.replace(
        seen, stack=main.frames, holds_gil=seen.holds_gil or main.holds_gil
    )


def _sorted(arrivals: Iterable[Arrival]) -> tuple[Arrival, ...]:
    return tuple(sorted(arrivals, key=lambda each: (each.rank, each.kind, each.file)))


# --- any folder of dumps ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Note:
    """A file beside dumps: the stacks of a rank, or what NCCL's RAS service answered."""

    path: Path
    rank: int = -1
    main: stacks.MainThread | None = None
    ras: bytes = b""


def _plain(path: Path) -> tuple[Gathered, ...]:
    reading = _read_inside(path)
    notes = _notes_beside(path)
    used = {str(note.path) for note in notes}
    findings = tuple(found for found in reading.findings if found.path not in used)
    attempts = sorted({dump.attempt for dump in reading.dumps}) or [""]
    nearest = _nearest(notes, reading.dumps)
    return tuple(
        _attempt(
            name,
            [dump for dump in reading.dumps if dump.attempt == name],
            findings,
            [note for note, near in zip(notes, nearest, strict=True) if not near or name in near],
        )
        for name in attempts
    )


def _nearest(notes: Sequence[_Note], dumps: Iterable[RankDump]) -> list[set[str]]:
    """Return for each note the attempts whose dumps lie nearest to it: it speaks of those."""
    below: dict[Path, set[str]] = defaultdict(set)
    for dump in dumps:
        for folder in dump.path.parents:
            below[folder].add(dump.attempt)
    return [
        next((below[folder] for folder in note.path.parents if folder in below), set())
        for note in notes
    ]


def _read_inside(path: Path) -> Reading:
    """Read the dumps of a tree, without those behind a link that leads out of it."""
    reading = read_tree(path)
    root = path.resolve()
    outside = {d.path for d in reading.dumps if not d.path.resolve().is_relative_to(root)}
    text = "a link that leads out of the folder; copy the file into it to have it used"
    return Reading(
        tuple(dump for dump in reading.dumps if dump.path not in outside),
        (*reading.findings, *(Finding("link", str(each), text) for each in sorted(outside))),
    )


def _attempt(
    name: str, dumps: list[RankDump], findings: tuple[Finding, ...], notes: Sequence[_Note]
) -> Gathered:
    observations: dict[int, Observation] = {}
    ranks = frozenset(dump.rank for dump in dumps if dump.rank is not None)
    listed = listed_ranks(each.dump for each in dumps)
    arrivals = [Arrival(d.rank, DUMP, str(d.path), "") for d in dumps if d.rank is not None]
    world_size = max(ranks | listed, default=-1) + 1
    for note in notes:
        observations.update(ras.parse(note.ras, world_size))
    for note in notes:
        if note.main is None:
            continue
        if dumps and note.rank >= world_size:
            text = f"its name says rank {note.rank}, which this job does not have; it is not used"
            findings = (*findings, Finding("wrong-rank", str(note.path), text, Severity.WARNING))
            continue
        _add_stack(observations, note.rank, note.main)
        arrivals.append(Arrival(note.rank, STACKS, str(note.path), ""))
    for rank in sorted(listed - ranks):
        arrivals.append(Arrival(rank, DUMP, "", "no file of this rank is there"))
    evidence = Evidence(dumps=tuple(dumps), observations=observations, findings=findings)
    return Gathered(attempt=name, evidence=evidence, arrivals=_sorted(arrivals))


def _notes_beside(path: Path) -> list[_Note]:
    """Return the files with stacks or answers of RAS below ``path``."""
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            note = _note(Path(folder) / name)
            if note is not None:
                found.append(note)
    return found


def _note(file: Path) -> _Note | None:
    named = _STACKS_NAME.search(file.name)
    if not named and not ("ras" in file.name.lower() and file.suffix == ".json"):
        return None
    try:
        data = regular.read(file, LARGEST_NOTE)
    except regular.NotReadError:
        return None  # reading the dumps has found the same
    if ras.is_ras(data):
        return _Note(file, ras=data)
    return _Note(file, int(named.group(1)), stacks.parse(data)) if named else None


def no_dump(gathered: Gathered) -> bool:
    """Return whether there is nothing at all to judge by."""
    return not gathered.evidence.dumps and not gathered.evidence.observations


def errors(gathered: Gathered) -> list[Finding]:
    """Return the findings that kept a file from being used."""
    return [each for each in gathered.evidence.findings if each.severity is Severity.ERROR]
