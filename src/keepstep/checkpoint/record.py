"""What test-loads have proven, kept in the user's state directory until it is out of date.

Never in the checkpoint's folder or beside it: trainers list and clean up these folders by the names
in them, and some take whatever holds ``step-100`` in its name for a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.readers import GLOBAL, HF_INDEX, RANK_LOCAL
from keepstep.checkpoint.safetensors import SUFFIX
from keepstep.checkpoint.store import File, LocalStore, Store

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a checkpoint the one that was loaded."""

    metadata: dict[str, str]  # SHA-256 of each metadata file
    data: dict[str, tuple[int, float | None]]  # size in bytes and time of each other file


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One test-load, and what it was done with."""

    address: str
    identity: Identity
    environment: dict[str, Any]  # as probe_environment says
    python: str  # the command that starts the interpreter
    when: str  # ISO 8601, UTC
    verdict: str  # pass, fail or inconclusive
    level: str  # bytes: all was read; keys: and it is what the trainer's state dict asks for
    error: str  # why it failed
    bytes: int
    digests: dict[str, str]  # SHA-256 of each entry

    @property
    def torch(self) -> str:
        """The version of PyTorch that loaded it."""
        return str((self.environment["torch"] or {}).get("version"))


def identify(store: Store) -> Identity:
    """Read what makes the checkpoint at ``store`` itself: costs its metadata and one listing.

    Raises:
        NotACheckpointError: There is nothing there.
    """
    files = store.files()
    metadata = {name for name in files if name == GLOBAL or RANK_LOCAL.fullmatch(name)}
    if not metadata and any(name.endswith(SUFFIX) for name in files):
        return _identity(store, files, {HF_INDEX} & files.keys())
    if not metadata:
        raise NotACheckpointError(f"{store.address}: no {GLOBAL}: nothing to load")
    return _identity(store, files, metadata)


def _identity(store: Store, files: dict[str, File], metadata: set[str]) -> Identity:
    return Identity(
        metadata={name: _sha256(store, name) for name in sorted(metadata)},
        data={
            name: (file.size, file.modified)
            for name, file in sorted(files.items())
            if not name.startswith(GLOBAL) and name not in metadata
        },
    )


def write_record(record: Record) -> Path:
    """Keep a record in place of an earlier one of this checkpoint and interpreter."""
    folder = _folder(record.address)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_key(record.python)}.json"
    # Whole or not at all, as with everything else that is put in place.
    LocalStore(folder).put(path.name, json.dumps(asdict(record)).encode())
    return path


def read_records(store: Store) -> list[Record]:
    """Return what is known of a checkpoint, newest first; a damaged record proves nothing."""
    records = []
    for path in _folder(address_of(store)).glob("*.json"):
        try:
            found = json.loads(path.read_text())
            found["identity"] = Identity(
                metadata=found["identity"]["metadata"],
                data={name: tuple(file) for name, file in found["identity"]["data"].items()},
            )
            records.append(Record(**found))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return sorted(records, key=lambda record: record.when, reverse=True)


def differences(
    record: Record, identity: Identity, environment: dict[str, Any] | None
) -> list[str]:
    """Say why a record proves nothing any more; empty while it does.

    Args:
        record: What was proven.
        identity: Of the checkpoint as it is now.
        environment: Of the interpreter as it is now; None where it does not start.
    """
    reasons = []
    if record.identity.metadata != identity.metadata:
        reasons.append("its metadata has changed")
    if record.identity.data != identity.data:
        both = record.identity.data.items() ^ identity.data.items()
        names = sorted({name for name, _ in both})
        reasons.append(f"data files have changed: {', '.join(names[:3])}")
    if environment is None:
        reasons.append(f"{record.python} does not start here")
    elif environment != record.environment:
        keys = record.environment.keys() | environment.keys()
        changed = sorted(k for k in keys if record.environment.get(k) != environment.get(k))
        reasons.append(f"the environment has changed: {', '.join(changed)}")
    return reasons


def address_of(store: Store) -> str:
    """Return one address for a checkpoint, however the user wrote it."""
    return str(store.path.resolve()) if isinstance(store, LocalStore) else store.address


def _folder(address: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "keepstep" / "test-loads" / _key(address)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sha256(store: Store, name: str) -> str:
    size, digest = store.size(name), hashlib.sha256()
    for start in range(0, size, _BLOCK):
        digest.update(store.read(name, start, start + _BLOCK))
    return digest.hexdigest()
