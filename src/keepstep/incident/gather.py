"""From a path to what a diagnosis may use: an incident of ours, or any folder of dumps."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.incident import ras, stacks
from keepstep.incident.manifest import (
    DUMP,
    NAME,
    STACKS,
    Artifact,
    Manifest,
    ManifestError,
    RankFacts,
)
from keepstep.recorder.model import Finding, RankDump, Severity
from keepstep.recorder.read import read_tree

LARGEST_NOTE = 64 << 20  # bytes of a file with stacks or an answer of RAS
_STACKS_NAME = re.compile(r"(?:py-?spy|stacks?|traceback)[^0-9]*?(\d+)\.(?:json|txt|log)\Z", re.I)


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
    """Read an incident, or each attempt in a tree of dumps (in the order of their names).

    Raises:
        FileNotFoundError: there is nothing at ``path``.
    """
    folders = manifest_folders(path)
    if folders:
        return (_incident(folders),)
    return _plain(path)


def manifest_folders(path: Path) -> list[Path]:
    """Return the folders of an incident that hold a manifest: one for each host."""
    if (path / NAME).is_file():
        return [path]
    return sorted(found.parent for found in path.glob(f"*/{NAME}")) if path.is_dir() else []


# --- incidents of ours --------------------------------------------------------------------------


def _incident(folders: list[Path]) -> Gathered:
    found = _Incident()
    for folder in folders:
        found.add(folder)
    return found.gathered()


class _Incident:
    """What the hosts of one incident wrote, added one after the other."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.dumps: list[RankDump] = []
        self.arrivals: list[Arrival] = []
        self.findings: list[Finding] = []
        self.observations: dict[int, Observation] = {}

    def add(self, folder: Path) -> None:
        try:
            manifest = Manifest.from_json((folder / NAME).read_bytes())
        except (OSError, ManifestError) as error:
            self.findings.append(Finding("manifest", str(folder / NAME), str(error)))
            return
        self.manifests.append(manifest)
        reading = read_tree(folder)
        dumps = {dump.path.name: dump for dump in reading.dumps}
        due = {a.file for facts in manifest.members for a in facts.artifacts if a.kind == DUMP}
        self.findings += [each for each in reading.findings if Path(each.path).name in due]
        for facts in manifest.members:
            if facts.artifacts or facts.rank not in self.observations:
                self.observations[facts.rank] = _observation(facts)
            for artifact in facts.artifacts:
                self._take(folder, facts, artifact, dumps)

    def _take(
        self, folder: Path, facts: RankFacts, artifact: Artifact, dumps: dict[str, RankDump]
    ) -> None:
        problem = _problem(folder, artifact)
        file = folder / artifact.file
        rank = facts.rank
        self.arrivals.append(Arrival(rank, artifact.kind, "" if problem else str(file), problem))
        if artifact.kind == STACKS and not problem:
            _add_stack(self.observations, rank, file.read_bytes())
        elif artifact.kind == DUMP and problem:
            seen = self.observations[rank]
            self.observations[rank] = dataclasses.replace(seen, missing_dump=problem)
        elif artifact.kind == DUMP and artifact.file in dumps:
            read = dumps[artifact.file]
            # What the manifest says about whose it is beats what a file name suggests.
            self.dumps.append(dataclasses.replace(read, rank=rank, host=facts.host, attempt=""))

    def gathered(self) -> Gathered:
        ranks = frozenset(facts.rank for each in self.manifests for facts in each.members)
        evidence = Evidence(
            dumps=tuple(self.dumps),
            observations=self.observations,
            expected_ranks=ranks or None,
            findings=tuple(self.findings),
        )
        return Gathered(
            attempt="",
            evidence=evidence,
            arrivals=_sorted(self.arrivals),
            manifests=tuple(self.manifests),
        )


def _observation(facts: RankFacts) -> Observation:
    try:
        life = Life(facts.life)
    except ValueError:
        life = Life.UNKNOWN
    return Observation(life=life, why=facts.why, holds_gil=facts.holds_gil, step=facts.step)


def _problem(folder: Path, artifact: Artifact) -> str:
    """Return why an artifact cannot be used, "" if it can."""
    if not artifact.file:
        return artifact.reason or "missing, and nothing says why"
    if "/" in artifact.file or artifact.file.startswith("."):
        return f"the manifest names {artifact.file!r}, which is no file of its folder"
    path = folder / artifact.file
    try:
        data = path.read_bytes()
    except OSError as error:
        return f"named in the manifest and not readable: {error.strerror}"
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        return "changed since the manifest was written: its SHA-256 differs"
    return ""


def _add_stack(observations: dict[int, Observation], rank: int, data: bytes) -> None:
    main = stacks.parse(data)
    seen = observations.get(rank, Observation())
    observations[rank] = dataclasses.replace(
        seen, stack=main.frames, holds_gil=seen.holds_gil or main.holds_gil
    )


def _sorted(arrivals: Iterable[Arrival]) -> tuple[Arrival, ...]:
    return tuple(sorted(arrivals, key=lambda each: (each.rank, each.kind)))


# --- any folder of dumps ------------------------------------------------------------------------


def _plain(path: Path) -> tuple[Gathered, ...]:
    reading = read_tree(path)
    notes = _notes_beside(path)
    used = {str(note) for note in notes}
    findings = tuple(found for found in reading.findings if found.path not in used)
    attempts = sorted({dump.attempt for dump in reading.dumps}) or [""]
    return tuple(
        _attempt(name, [d for d in reading.dumps if d.attempt == name], findings, notes)
        for name in attempts
    )


def _attempt(
    name: str, dumps: list[RankDump], findings: tuple[Finding, ...], notes: list[Path]
) -> Gathered:
    observations: dict[int, Observation] = {}
    ranks = frozenset(dump.rank for dump in dumps if dump.rank is not None)
    listed = {rank for d in dumps for group in d.dump.groups for rank in group.ranks or ()}
    arrivals = [Arrival(d.rank, DUMP, str(d.path), "") for d in dumps if d.rank is not None]
    for note in notes:
        data = note.read_bytes()
        if ras.is_ras(data):
            observations.update(ras.parse(data, max(ranks | listed, default=-1) + 1))
    for note in notes:
        matched = _STACKS_NAME.search(note.name)
        if matched:
            _add_stack(observations, int(matched.group(1)), note.read_bytes())
            arrivals.append(Arrival(int(matched.group(1)), STACKS, str(note), ""))
    for rank in sorted(listed - ranks):
        arrivals.append(Arrival(rank, DUMP, "", "no file of this rank is there"))
    evidence = Evidence(dumps=tuple(dumps), observations=observations, findings=findings)
    return Gathered(attempt=name, evidence=evidence, arrivals=_sorted(arrivals))


def _notes_beside(path: Path) -> list[Path]:
    """Return the files with stacks or answers of RAS below ``path``, none that is too large."""
    if not path.is_dir():
        return []
    found = []
    for file in sorted(path.rglob("*")):
        fits = file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST_NOTE
        if fits and (_STACKS_NAME.search(file.name) or _may_be_ras(file)):
            found.append(file)
    return found


def _may_be_ras(file: Path) -> bool:
    return "ras" in file.name.lower() and file.suffix == ".json" and _begins_as_ras(file)


def _begins_as_ras(file: Path) -> bool:
    with open(file, "rb") as opened:
        return ras.is_ras(opened.read(LARGEST_NOTE))


def no_dump(gathered: Gathered) -> bool:
    """Return whether there is nothing at all to judge by."""
    return not gathered.evidence.dumps and not gathered.evidence.observations


def errors(gathered: Gathered) -> list[Finding]:
    """Return the findings that kept a file from being used."""
    return [each for each in gathered.evidence.findings if each.severity is Severity.ERROR]
