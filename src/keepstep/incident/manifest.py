"""The manifest of an incident folder: what was due of which rank, what is there, why not the rest.

An incident lies in a folder of its name, with one sub-folder for each host that wrote to it. Each
sub-folder is complete in itself: artifacts, ``manifest.json``, and (on the first host) the verdict.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from keepstep.recorder import limits

NAME = "manifest.json"
VERSION = 1
DUMP, STACKS = "recorder dump", "stacks"


class ManifestError(ValueError):
    """A file that is no manifest of ours; the text says what was wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """One thing that was due of one rank. ``file`` is "" where it is missing; ``reason`` says why.

    ``size`` is in bytes, ``sha256`` in hexadecimal digits, ``taken`` in seconds since the epoch.
    """

    kind: str
    file: str = ""
    size: int = 0
    sha256: str = ""
    taken: float | None = None
    reason: str = ""
    how: str = ""  # by whom it was taken: "side thread", "py-spy"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """One member of the generation, as the agent of its host knew it."""

    rank: int
    worker: int
    host: str
    agent: str
    pid: int = 0
    user: int = 0
    life: str = "unknown"  # a value of diagnosis.evidence.Life
    why: str = ""  # "killed by SIGKILL", "stopped (state T)"
    holds_gil: bool = False
    step: int | None = None  # steps that it had committed
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One host's part of an incident."""

    incident: str
    agent: str
    host: str
    written: float  # seconds since the epoch
    generation: int
    step: int
    backend: str
    faults: tuple[dict[str, Any], ...]  # rank, worker, fault, evidence as the run saw them
    members: tuple[RankFacts, ...]  # all of the generation; artifacts only of this host's
    outcome: str  # "generation 3 at step 40", or why the job ended

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Read what ``to_json`` wrote.

        Raises:
            ManifestError: not JSON, another version, or fields that do not fit.
        """
        try:
            body = json.loads(text)
            version = body.pop("version")
            if version != VERSION:
                raise ManifestError(f"version {version!a} of a manifest; known is {VERSION}")
            members = tuple(_rank_facts(entry) for entry in body.pop("members"))
            faults = tuple(dict(entry) for entry in body.pop("faults"))
            found = _made(cls, body, members=members, faults=faults)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, ManifestError):
                raise
            raise ManifestError(f"not a manifest of an incident: {error}") from error
        _once("rank", [facts.rank for facts in members])
        _once("file", [a.file for facts in members for a in facts.artifacts if a.file])
        return found


def _once(what: str, listed: Sequence[object]) -> None:
    for value, times in Counter(listed).most_common(1):
        if times > 1:
            raise ManifestError(f"{what} {value!a:.80} is listed {times} times")


_Made = TypeVar("_Made", Manifest, RankFacts, Artifact)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, NoneType),
    "float": (int, float),
    "float | None": (int, float, NoneType),
    "bool": (bool,),
}
_ALLOWED = {
    cls.__name__: {field.name: _TYPES.get(str(field.type), ()) for field in dataclasses.fields(cls)}
    for cls in (Manifest, RankFacts, Artifact)
}


def _made(cls: type[_Made], body: dict[str, Any], **made: Any) -> _Made:
    """Return ``cls`` from parsed JSON, each value checked; ``made`` are fields that already are."""
    allowed = _ALLOWED[cls.__name__]
    for name, value in body.items():
        if type(value) not in allowed.get(name, ()):
            raise ManifestError(f"{name!a:.80} of a manifest cannot be {value!a:.80}")
    return cls(**body, **made)


def _rank_facts(body: dict[str, Any]) -> RankFacts:
    artifacts = tuple(_made(Artifact, entry) for entry in body.pop("artifacts"))
    found = _made(RankFacts, body, artifacts=artifacts)
    if not 0 <= found.rank < limits.RANK:
        raise ManifestError(f"a rank is a number from 0 on, this is {found.rank}")
    return found


def describe(path: Path, kind: str, *, name: str, how: str) -> Artifact:
    """Return the artifact that lies at ``path`` and will be called ``name``."""
    data = path.read_bytes()
    return Artifact(
        kind=kind,
        file=name,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        taken=path.stat().st_mtime,
        how=how,
    )
