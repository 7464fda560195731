"""Makes a checkpoint readable for an older PyTorch, and undoes it. Only metadata is written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, BinaryIO

from keepstep.checkpoint.contents import StoredFile, answer_of, ask, files_of, start
from keepstep.checkpoint.datafiles import lacking, with_linked
from keepstep.checkpoint.dropped import count_dropped
from keepstep.checkpoint.eras import era_of, not_older
from keepstep.checkpoint.errors import CannotConvertError, CheckpointError, UnsafeMetadataError
from keepstep.checkpoint.names import SINCE
from keepstep.checkpoint.payload import read_payload
from keepstep.checkpoint.peek import peek
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL, Readers, find_readers, verdicts
from keepstep.checkpoint.rewrite import Rewritten, rewrite, unframed
from keepstep.checkpoint.store import File, Stamp, Store

TARGETS = ("2.14", "2.4", "2.3", "2.2")  # versions to go back to; others mean the next older one
KEPT = ".before-downgrade"  # ends the name of the original metadata
RECORD = ".downgrade.json"  # ends the name of the note about what was done

# Two classes that moved together in 2.3. One loads the other's values by identity.
_MOVED = ("TensorProperties", "MEM_FORMAT_ENCODING")

_SHOWN = 20  # entries that an error lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One metadata file, rewritten and checked, not yet put in place."""

    name: str
    minor: str
    stamp: Stamp  # of the file that was read
    before: bytes
    after: Rewritten


def convert(store: Store, minor: str) -> list[Conversion]:
    """Rewrite the metadata of a checkpoint for PyTorch ``minor``, and check the result.

    The check reads both files safely: everything in them must be equal but what had to be dropped.
    The data files that they name must be there and long enough; their content is not read.

    Returns:
        One conversion a metadata file; none where every file is readable for ``minor`` already.

    Raises:
        CannotConvertError: Something in it cannot be made readable, or data files are missing or
            short; the text names it.
        UnsafeMetadataError: The metadata is damaged or hostile.
    """
    found = find_readers(store)
    names = _metadata_files(store, found, minor)
    files = store.files()
    return [conversion for name in names if (conversion := _convert(store, files, name, minor))]


def put_in_place(store: Store, conversion: Conversion) -> None:
    """Replace a metadata file by its conversion; the original stays under another name.

    The order matters: at every moment the file is the old one or the new one, and from before the
    first change until ``undo`` the original is there.
    """
    kept, record = conversion.name + KEPT, conversion.name + RECORD
    before, after = _sha256(conversion.before), _sha256(conversion.after.data)
    earlier = read_record(store, conversion.name)
    ours = [after]
    if earlier is not None and before in earlier["after"]:
        before = earlier["before"]  # converted once more: the first original is the one to keep
        ours += earlier["after"]
    else:
        store.put(kept, conversion.before, like=conversion.name)
    note = {
        "before": before,
        "after": ours,
        "for": conversion.minor,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    store.put(record, json.dumps(note).encode())
    # With the time of the original: verify compares it with the times of the data files.
    store.put(
        conversion.name, conversion.after.data, only_if=conversion.stamp, like=conversion.name
    )


def undo(store: Store) -> list[str]:
    """Put the original metadata back, byte for byte; returns the names of the files.

    Raises:
        CheckpointError: There is nothing to undo, or the checkpoint was saved again since.
    """
    names = [name.removesuffix(RECORD) for name in store.files() if name.endswith(RECORD)]
    if not names:
        raise CheckpointError(
            f"{store.address}: there is no downgrade to undo (no {GLOBAL}{RECORD}); a downgrade to "
            "another folder leaves its source as it was"
        )
    for name in names:
        _undo(store, name)
    return sorted(names)


def read_record(store: Store, name: str) -> dict[str, Any] | None:
    """Return the note about the last downgrade of a metadata file; None where there is none.

    Raises:
        CheckpointError: The note is not one of ours.
    """
    try:
        text = store.read(name + RECORD, 0, 1 << 16)
    except FileNotFoundError:
        return None
    try:
        note = json.loads(text)
        return {
            **{key: str(note[key]) for key in ("before", "for", "when")},
            "after": [str(digest) for digest in note["after"]],
        }
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{store.address}: {name}{RECORD} is damaged: remove it") from None


def _undo(store: Store, name: str) -> None:
    note = read_record(store, name)
    assert note is not None, "the file was listed"
    stamp = store.stamp(name)
    now = _sha256(_whole(store, name))
    if now in note["after"]:
        original = _whole(store, name + KEPT)
        if _sha256(original) != note["before"]:
            raise CheckpointError(
                f"{store.address}: {name}{KEPT} is not the original any more: nothing was changed"
            )
        store.put(name, original, only_if=stamp, like=name + KEPT)
    elif now != note["before"]:
        raise CheckpointError(
            f"{store.address}: {name} was written again since the downgrade of {note['when']}: "
            f"it is left as it is. If that is right, remove {name}{KEPT} and {name}{RECORD}"
        )
    store.remove(name + RECORD)
    store.remove(name + KEPT)


def _metadata_files(store: Store, found: Readers, minor: str) -> list[str]:
    if found.kind == "huggingface":
        raise CannotConvertError(
            f"{store.address}: safetensors files have no metadata to convert: "
            f"see keepstep checkpoint readers {store.address}"
        )
    if not any(found.readers.values()):
        raise CannotConvertError(f"{store.address}: {found.notes[0]}")
    if found.kind == "dcp":
        return [GLOBAL]
    if not not_older(minor, "2.9"):
        raise CannotConvertError(
            f"{store.address}: it has metadata of each rank only (use_collectives=False), which "
            f"PyTorch {minor} does not look for; 2.9 is the oldest that does"
        )
    return sorted(name for name in store.files() if RANK_LOCAL.fullmatch(name))


def _convert(store: Store, files: dict[str, File], name: str, minor: str) -> Conversion | None:
    stamp = store.stamp(name)
    before = _whole(store, name)
    try:
        after = rewrite(before, minor)
        if after.changed:
            made = _check(before, after, minor)
        else:
            with _file(before) as same:
                made = ask(same, "summary")
    except UnsafeMetadataError as error:
        raise UnsafeMetadataError(f"{store.address}: {name}: {error}") from None
    _check_data(store, files, name, files_of(made["summary"]))
    if not after.changed:
        return None
    if after.strides:
        _check_objects(store, made["objects"])
    return Conversion(name=name, minor=minor, stamp=stamp, before=before, after=after)


def _check_data(
    store: Store, files: dict[str, File], name: str, stored: dict[str, StoredFile]
) -> None:
    """Refuse a checkpoint whose data files are missing or end before their last slice does."""
    found = lacking(with_linked(store, files, stored), stored, name)
    if not found:
        return
    said = "; ".join(f"{each.file}: {each.text}" for each in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more files" if len(found) > _SHOWN else ""
    raise CannotConvertError(
        f"{store.address}: damaged, so nothing was changed: {said}{more}. What else is wrong, and "
        f"what mends it: keepstep checkpoint verify {store.address}"
    )


def _check(before: bytes, after: Rewritten, minor: str) -> dict[str, Any]:
    """Compare what both files say; returns the summary, and where the objects are stored."""
    made, equal = (_read_one if after.only_strides else _read_both)(before, after)
    transformed = made["summary"]["transformed"]
    if transformed and not not_older(minor, "2.7"):
        raise CannotConvertError(
            f"{transformed[0]}: it went through an extension (compression, encryption), which "
            f"PyTorch {minor} does not know; 2.7 is the oldest that does"
        )
    seen = peek(after.data[: 1 << 20], after.data[-(1 << 20) :], whole=len(after.data) <= 1 << 20)
    readable = seen is None or verdicts(era_of(seen))[minor] is True
    classes = made["summary"]["classes"]
    readable &= all(not_older(minor, SINCE.get(name, "2.0")) for name in classes)
    readable &= len({name.rpartition(".")[0] for name in classes if name.endswith(_MOVED)}) <= 1
    if not equal or not readable or made["summary"]["fields"] not in ([], [5]):
        raise CannotConvertError(
            f"the rewritten metadata is not what PyTorch {minor} needs "
            f"({'its form' if equal else 'something else differs'}): nothing was changed"
        )
    return made


# The rewriting has checked the opcodes of both files: the new ones are POP, NONE and texts, so the
# limited process need not.


def _read_one(before: bytes, after: Rewritten) -> tuple[dict[str, Any], bool]:
    """Read the new file while its bytes are compared with the old ones: half of the work."""
    with _file(after.data) as new:
        process = start(new, "summary", "objects", "alone", "unchecked")
        try:
            equal = count_dropped(unframed(before), after.data) == after.strides
            made = answer_of(process)
        finally:
            process.kill()
            process.wait()
    return made, equal and made["alone"]


def _read_both(before: bytes, after: Rewritten) -> tuple[dict[str, Any], bool]:
    """Read both files and compare digests of all that must not change."""
    with _file(before) as old, _file(after.data) as new:
        both = [
            start(old, "digest", "unchecked"),
            start(new, "digest", "summary", "objects", "unchecked"),
        ]
        try:
            found, made = (answer_of(process) for process in both)
        finally:
            for process in both:
                process.kill()
                process.wait()
    dropped = {"storage_meta"} if after.storage_meta else set()
    return made, all(
        made["digest"][part] == digest
        for part, digest in found["digest"].items()
        if part not in dropped
    )


def _check_objects(store: Store, objects: list[list[Any]]) -> None:
    """Refuse objects with a ShardedTensor inside: their own pickles hold what 2.15 changed."""
    bad = []
    for name, file, offset, length in objects:
        try:
            content = store.read(file, offset, offset + length)
            if read_payload(BytesIO(content)).properties:
                bad.append(name)
        except UnsafeMetadataError as error:
            raise CannotConvertError(
                f"{store.address}: {name} in {file} cannot be looked at: {error}"
            ) from None
    if bad:
        raise CannotConvertError(
            f"{store.address}: these entries are pickles with a ShardedTensor (TensorProperties) "
            f"inside, which no rewrite of the metadata reaches: {', '.join(bad[:_SHOWN])}"
            + (f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
        )


@contextmanager
def _file(data: bytes) -> Iterator[BinaryIO]:
    """Give bytes as a file that is nowhere but in memory."""
    with os.fdopen(os.memfd_create("metadata"), "w+b") as file:
        file.write(data)
        file.flush()
        yield file


def _whole(store: Store, name: str) -> bytes:
    return store.read(name, 0, store.size(name))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
