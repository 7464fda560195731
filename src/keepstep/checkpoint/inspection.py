"""What is in a checkpoint and who can load it, with everything read that the metadata says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keepstep.checkpoint.contents import Contents, read_contents
from keepstep.checkpoint.eras import MINORS, not_older
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL, Readers, find_readers
from keepstep.checkpoint.store import Store


@dataclass(frozen=True, slots=True)
class Inspection:
    """Who can load a checkpoint, and what each of its metadata files says."""

    readers: Readers
    metadata: dict[str, Contents]  # by file: .metadata, or one for each rank


def inspect_store(store: Store) -> Inspection:
    """Read everything that the metadata of a checkpoint says.

    Raises:
        NotACheckpointError: There is no checkpoint.
        UnsafeMetadataError: Its metadata is damaged or hostile.
    """
    readers = find_readers(store)
    names: list[str] = []
    if readers.kind == "dcp":
        names = [GLOBAL]
    elif readers.kind == "rank-local":
        names = sorted(name for name in store.files() if RANK_LOCAL.fullmatch(name))
    metadata = {name: contents_of(store, name) for name in names}
    return Inspection(_with_floors(readers, list(metadata.values())), metadata)


def contents_of(store: Store, name: str) -> Contents:
    """Read one metadata file of a checkpoint."""
    with store.opened(name) as file:
        try:
            return read_contents(file)
        except UnsafeMetadataError as error:
            raise UnsafeMetadataError(f"{store.address}: {name}: {error}") from None


def _with_floors(readers: Readers, contents: list[Contents]) -> Readers:
    """Add what only the whole metadata shows."""
    verdicts = dict(readers.readers)
    notes = [note for note in readers.notes if not note.startswith("not looked for")]
    transformed = [name for each in contents for name in each.transformed]
    if transformed:
        for minor in MINORS:
            verdicts[minor] = verdicts[minor] and not_older(minor, "2.7")
        notes.append(
            f"{transformed[0]} and others went through an extension (compression, encryption): "
            "2.7 or newer, and the same extension"
        )
    if any(not each.planner for each in contents):
        notes.append(
            "saved without flattening: dcp.load with a state dict works, but dcp_to_torch_save "
            "fails before 2.8 (argument of type 'NoneType' is not iterable)"
        )
    return replace(readers, readers=verdicts, notes=tuple(notes))
