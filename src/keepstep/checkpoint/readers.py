"""Which PyTorch versions can load a checkpoint: by range reads, in milliseconds at any size."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from keepstep.checkpoint.contents import ask
from keepstep.checkpoint.eras import MINORS, Era, era_of, evidence_for, not_older
from keepstep.checkpoint.errors import NotACheckpointError, UnsafeMetadataError
from keepstep.checkpoint.peek import Peek, peek
from keepstep.checkpoint.store import File, Store

GLOBAL = ".metadata"
TEMPORARY = ".metadata.tmp"
RANK_LOCAL = re.compile(r"__(\d+)\.metadata")
HF_INDEX = "model.safetensors.index.json"

_NUMBERED = re.compile(r".*\d(?:\.ckpt)?")  # how the name of a step ends

_STOP = b"."  # ends every pickle
# Bytes. The first tensor begins within 400 in most files, in a few behind thousands of objects;
# beyond _FAR (about 10,000 objects) the limited process is faster.
_HEAD, _FAR, _TAIL = 1 << 16, 1 << 19, 1 << 14

Verdicts = dict[str, bool | None]  # by minor version; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Who can load a checkpoint, and how that is known."""

    kind: str  # dcp, rank-local, huggingface or torch.save
    era: Era | None
    readers: Verdicts
    evidence: dict[str, str] = field(default_factory=dict)  # by minor version
    notes: tuple[str, ...] = ()
    python: str = ""  # what the reader's Python must be, "" for any

    @property
    def oldest(self) -> str | None:
        """The oldest version that can load it."""
        return next((minor for minor, can in self.readers.items() if can), None)


def find_readers(store: Store) -> Readers:
    """Say which versions can load the checkpoint at ``store``.

    Raises:
        NotACheckpointError: There is no checkpoint.
        UnsafeMetadataError: Its metadata is damaged or hostile.
    """
    files = store.files()
    if GLOBAL in files:
        return _distributed(store, files)
    local = sorted(name for name in files if RANK_LOCAL.fullmatch(name))
    if local:
        return _rank_local(store, files, local)
    if TEMPORARY in files:
        raise NotACheckpointError(
            f"{store.address}: a save was cut off just before its end: there is {TEMPORARY} and no "
            f"{GLOBAL}. No version loads it. See whether it is complete: "
            f"keepstep checkpoint verify {store.address}"
        )
    if holds_safetensors(files):
        return _huggingface(files)
    raise no_checkpoint(store.address, files)


def holds_safetensors(files: dict[str, File]) -> bool:
    """Tell whether a folder is itself a checkpoint of safetensors files: one lies in it."""
    return any(
        name.endswith(".safetensors") and ("/" not in name or HF_INDEX in files) for name in files
    )


def no_checkpoint(address: str, files: dict[str, File]) -> NotACheckpointError:
    """Return the error about a folder that is none; that it holds several is a common mistake."""
    below = _checkpoints_below(files)
    if not below:
        return NotACheckpointError(
            f"{address}: no {GLOBAL}, no __0.metadata, no *.safetensors among "
            f"{len(files)} files: not a distributed checkpoint, or one whose save did not end"
        )
    says = (
        f"{address}: no checkpoint, but a folder with {len(below)} of them, such as "
        f"{address.rstrip('/')}/{below[0]}: name one"
    )
    if any(_NUMBERED.fullmatch(name.partition("/")[0]) for name in below):
        says += (
            f", or ask which an older version reads: keepstep checkpoint status {address} "
            "--for MINOR"
        )
    return NotACheckpointError(says)


def _checkpoints_below(files: dict[str, File]) -> list[str]:
    """Return the outermost folders with metadata or safetensors files of their own."""
    marked = {
        name.rpartition("/")[0]
        for name in files
        if name.endswith((f"/{GLOBAL}", f"/{HF_INDEX}", ".safetensors"))
    }
    return sorted(
        name
        for name in marked
        if not any(name[:at] in marked for at, letter in enumerate(name) if letter == "/")
    )


def peek_at(store: Store, name: str, size: int | None = None) -> Peek:
    """Read the marks of the writer from one metadata file.

    Args:
        store: Where the file lies.
        name: Its name.
        size: Its size in bytes, where it is known already.
    """
    size = store.size(name) if size is None else size
    tail = store.read(name, size - _TAIL, size) if size > _HEAD else b""
    try:
        for wanted in (_HEAD, _FAR):
            head = store.read(name, 0, min(wanted, size))
            whole = wanted >= size
            seen = peek(head, head if whole else tail, whole=whole)
            if seen is not None:
                if not (tail or head).endswith(_STOP):
                    raise UnsafeMetadataError("cut off: it does not end as metadata does")
                return seen
        with store.opened(name) as file:
            return _marks(ask(file, "summary")["summary"])
    except UnsafeMetadataError as error:
        raise UnsafeMetadataError(f"{store.address}: {name}: {error}") from None


def _marks(summary: dict[str, Any]) -> Peek:
    """Return the marks of the writer from the whole file, read by the limited process."""
    classes = [name.rpartition(".") for name in summary["classes"]]
    homes = [module for module, _, name in classes if name == "TensorProperties"]
    return Peek(
        properties_module=homes[0] if homes else None,
        properties_fields=max(summary["fields"], default=None),
        storage_meta=any(name == "StorageMeta" for _, _, name in classes),
        python_313=any(module == "pathlib._local" for module, _, _ in classes),
        whole=True,
    )


def verdicts(era: Era | None, floor: str = "2.0") -> Verdicts:
    """Return who reads an era's form, and has at least version ``floor``."""
    oldest = era.first if era else "2.0"
    return {minor: not_older(minor, oldest) and not_older(minor, floor) for minor in MINORS}


def _distributed(store: Store, files: dict[str, File]) -> Readers:
    seen = peek_at(store, GLOBAL, files[GLOBAL].size)
    era = era_of(seen)
    notes = _reasons(era, seen)
    stale = [name for name in files if RANK_LOCAL.fullmatch(name)]
    readers = verdicts(era)
    if stale:
        notes.append(
            f"{', '.join(sorted(stale)[:3])} lies beside {GLOBAL}: where a PyTorch from 2.9 on "
            "cannot read the second, it silently loads the first, which may belong to other weights"
        )
    if _safetensors_inside(store, files):
        notes.insert(
            0,
            "its data files are in the safetensors format under the name .distcp: "
            "no PyTorch reads that back, not even the one that wrote it",
        )
        readers = dict.fromkeys(MINORS, False)
    return _answer("dcp", era, readers, notes, seen)


def _rank_local(store: Store, files: dict[str, File], names: list[str]) -> Readers:
    seen = [peek_at(store, name, files[name].size) for name in names]
    eras = [era for era in map(era_of, seen) if era is not None]
    newest = max(eras, key=lambda era: era.name, default=None)
    notes = ["every rank wrote metadata of its own (use_collectives=False): 2.9 or newer"]
    notes += _reasons(newest, seen[0])
    return _answer("rank-local", newest, verdicts(newest, "2.9"), notes, *seen)


def _answer(
    kind: str, era: Era | None, readers: Verdicts, notes: list[str], *seen: Peek
) -> Readers:
    python = ""
    if any(each.python_313 for each in seen):
        python = ">=3.13"
        notes.append(
            "written by Python 3.13: its pathlib._local needs Python 3.13 or newer to load, "
            "whatever the PyTorch; keepstep checkpoint downgrade mends it"
        )
    evidence = {minor: evidence_for(minor) for minor in MINORS}
    return Readers(
        kind=kind, era=era, readers=readers, evidence=evidence, notes=tuple(notes), python=python
    )


def _reasons(era: Era | None, seen: Peek) -> list[str]:
    if era is None:
        return ["it holds no tensor and no mark of a version: every PyTorch 2 reads it"]
    notes = [f"recognised by: {era.mark}"]
    if era.older:
        notes.append(f"older versions fail with: {era.older}")
    if seen.properties_module is None:
        notes.append("it holds no tensor, so nothing in it is newer than 2.4")
    if not seen.whole:
        notes.append(
            "not looked for at this speed: transform extensions, which need 2.7 or newer "
            "(keepstep checkpoint inspect says)"
        )
    return notes


def _safetensors_inside(store: Store, files: dict[str, File]) -> bool:
    """Tell whether the first data file begins like a safetensors file: length, then JSON."""
    first = min((name for name in files if name.endswith(".distcp")), default=None)
    if first is None or files[first].size < 9:
        return False
    begin = store.read(first, 0, 9)
    return begin[8:9] == b"{" and int.from_bytes(begin[:8], "little") < files[first].size


def _huggingface(files: dict[str, File]) -> Readers:
    readers: Verdicts = dict.fromkeys(MINORS)
    readers["2.14"] = readers["2.15"] = True
    evidence = {
        minor: evidence_for(minor) if readers[minor] else "not tried with HuggingFaceStorageReader"
        for minor in MINORS
    }
    notes = [
        "safetensors files: HuggingFaceStorageReader reads them without any pickled metadata, so "
        "the change of 2.15 does not touch them",
    ]
    if HF_INDEX not in files:
        notes.append(f"there is no {HF_INDEX}")
    return Readers(
        kind="huggingface", era=None, readers=readers, evidence=evidence, notes=tuple(notes)
    )
