"""Whether the data files that metadata names are there and long enough; none of them is read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from keepstep.checkpoint.contents import StoredFile
from keepstep.checkpoint.findings import Finding, Weight
from keepstep.checkpoint.store import File, LocalStore, Store


def with_linked(store: Store, files: dict[str, File], named: Iterable[str]) -> dict[str, File]:
    """Add to a listing what PyTorch finds by name although it lies outside of the folder.

    Metadata may refer to another checkpoint (``../step-90/__0_0.distcp``, or a full path), and a
    folder of this machine may hold links to folders. An object store is asked for full paths only,
    so it gets one request for the listing, however much is missing.
    """
    found = dict(files)
    for name in named:
        if name in files:
            continue
        if isinstance(store, LocalStore):
            if not (store.path / name).is_file():
                continue
        elif not name.startswith("/"):
            continue
        with suppress(OSError):
            found[name] = File(store.size(name), None)
    return found


def lacking(files: dict[str, File], stored: dict[str, StoredFile], metadata: str) -> list[Finding]:
    """Return which of the files that the metadata names are missing or short."""
    found = []
    for name, each in stored.items():
        file = files.get(name)
        if file is None:
            text = f"missing; {metadata} stores {each.slices} entries in it"
            found.append(Finding(Weight.DAMAGE, "missing-file", name, text))
        elif file.size < each.end:
            text = f"{file.size} bytes; {metadata} stores entries up to byte {each.end}"
            found.append(Finding(Weight.DAMAGE, "short-file", name, text))
    return found
