"""Checks of a checkpoint that PyTorch does not make: is all there, each slice as it was written?"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from keepstep.checkpoint.contents import Contents, Slice, read_slices
from keepstep.checkpoint.datafiles import lacking, with_linked
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.findings import Finding, Verification, Weight, heaviest_first
from keepstep.checkpoint.names import DTYPES
from keepstep.checkpoint.readers import (
    GLOBAL,
    HF_INDEX,
    RANK_LOCAL,
    TEMPORARY,
    holds_safetensors,
    no_checkpoint,
)
from keepstep.checkpoint.safetensors import verify_safetensors
from keepstep.checkpoint.store import UNFINISHED, File, LocalStore, Store
from keepstep.checkpoint.stored import DamagedSliceError, check_parts, parts, tensor_part


def verify(store: Store) -> Verification:
    """Check every file, size, shard and CRC of a checkpoint.

    Raises:
        NotACheckpointError: There is no checkpoint at the address.
    """
    files = store.files()
    names = [GLOBAL] if GLOBAL in files else sorted(filter(RANK_LOCAL.fullmatch, files))
    if not names:
        if TEMPORARY in files:
            return _unfinished(store, files)
        if holds_safetensors(files) or HF_INDEX in files:
            return verify_safetensors(store, files)
        raise no_checkpoint(store.address, files)
    return _verify(store, files, names)


def _verify(store: Store, files: dict[str, File], names: list[str]) -> Verification:
    findings = _beside(files, names)
    slices: list[Slice] = []
    dtypes: dict[str, str] = {}
    named: set[str] = set()
    for name in names:
        try:
            with store.opened(name) as file:
                contents, found, problems = read_slices(file)
        except UnsafeMetadataError as error:
            findings.append(Finding(Weight.DAMAGE, "metadata", name, str(error)))
            continue
        findings += [Finding(Weight.DAMAGE, "structure", name, text) for text in problems]
        files = with_linked(store, files, contents.files)
        findings += _sizes(files, contents, name)
        slices += found
        named |= contents.files.keys()
        dtypes.update((tensor.name, tensor.dtype) for tensor in contents.tensors)
    if slices:
        findings += _strays(files, named)
    checked, unchecked, size = _check_slices(store, files, slices, dtypes, findings)
    return Verification(
        findings=heaviest_first(findings),
        checked=checked,
        unchecked=unchecked,
        bytes=size,
    )


def _beside(files: dict[str, File], names: list[str]) -> list[Finding]:
    """Look for metadata that does not belong to this checkpoint."""
    found = []
    if names == [GLOBAL]:
        for name in sorted(filter(RANK_LOCAL.fullmatch, files)):
            text = (
                f"metadata of one rank beside {GLOBAL}: a PyTorch from 2.9 on that cannot read the "
                "second loads by the first, silently, and it may name other weights; move it away"
            )
            found.append(Finding(Weight.DAMAGE, "stale-rank-metadata", name, text))
        if TEMPORARY in files:
            text = "left by a save that is running, or was cut off before its end"
            found.append(Finding(Weight.SUSPECT, "unfinished-save", TEMPORARY, text))
    for name in sorted(files):
        if name.endswith(UNFINISHED):
            text = "left by a downgrade that was cut off; it can be removed"
            found.append(Finding(Weight.NOTE, "unfinished-downgrade", name, text))
    return found


def _sizes(files: dict[str, File], contents: Contents, metadata: str) -> list[Finding]:
    """Compare the files that the metadata names with those that are there."""
    found = lacking(files, contents.files, metadata)
    saved = files[metadata].modified
    for name, stored in contents.files.items():
        file = files.get(name)
        if file is None:
            continue
        if file.size > stored.end:
            text = f"{file.size - stored.end} bytes more than {metadata} knows of"
            found.append(Finding(Weight.SUSPECT, "long-file", name, text))
        if file.modified is not None and saved is not None and file.modified > saved:
            text = (
                f"written {file.modified - saved:.3g} s after {metadata}, which a save writes "
                "last: it may belong to another save that was cut off; or the folder was copied "
                "without its times (cp -p keeps them)"
            )
            found.append(Finding(Weight.SUSPECT, "newer-than-metadata", name, text))
    return found


def _strays(files: dict[str, File], named: set[str]) -> list[Finding]:
    text = "no metadata names it: left over from an earlier save into this folder, most likely"
    return [
        Finding(Weight.NOTE, "stray-file", name, text)
        for name in sorted(files)
        if name.endswith(".distcp") and name not in named
    ]


def _check_slices(
    store: Store,
    files: dict[str, File],
    slices: list[Slice],
    dtypes: dict[str, str],
    findings: list[Finding],
) -> tuple[int, int, int]:
    """Check the CRCs, file by file; returns slices checked, not checkable, and bytes read."""
    checked = unchecked = size = 0
    by_file: dict[str, list[Slice]] = {}
    for each in slices:
        by_file.setdefault(each.file, []).append(each)
    for name in sorted(by_file.keys() & files.keys()):
        if files[name].size == 0:
            continue
        with mapped(store, name) as data:
            for each in by_file[name]:
                if each.offset + each.length > len(data):
                    continue  # the file is short: found already
                if each.transformed:
                    unchecked += 1
                    continue
                with data[each.offset : each.offset + each.length] as content:
                    try:
                        sure = _check_slice(content, each, dtypes.get(each.name))
                    except DamagedSliceError as error:
                        text = f"{each.name} at byte {each.offset}: {error}"
                        findings.append(Finding(Weight.DAMAGE, "slice", name, text))
                        continue
                checked += sure
                unchecked += not sure
                size += each.length
    return checked, unchecked, size


def _check_slice(content: memoryview, each: Slice, dtype: str | None) -> bool:
    found = parts(content)
    if each.sizes is not None and dtype is not None and DTYPES[dtype]:
        stored = tensor_part(found)
        wanted = prod(each.sizes) * DTYPES[dtype]
        if wanted and (stored is None or stored.size != wanted):
            raise DamagedSliceError(
                f"it holds {0 if stored is None else stored.size} bytes of elements; {wanted} "
                f"belong to a {dtype} shard of shape {list(each.sizes)}"
            )
    return check_parts(content, found)


@contextmanager
def mapped(store: Store, name: str) -> Iterator[memoryview]:
    """Give the bytes of a file that is not empty without reading it into memory."""
    with (
        store.opened(name) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        yield view


def _unfinished(store: Store, files: dict[str, File]) -> Verification:
    """Judge a save that was cut off between removing the old metadata and renaming the new."""
    inside = _verify(store, files, [TEMPORARY])
    text = f"a save was cut off just before it renamed this to {GLOBAL}: no PyTorch loads it now"
    findings = (Finding(Weight.DAMAGE, "unfinished-save", TEMPORARY, text), *inside.findings)
    complete = inside.worst() in (None, Weight.NOTE)
    command = f"mv {store.address}/{TEMPORARY} {store.address}/{GLOBAL}"
    return Verification(
        findings=findings,
        checked=inside.checked,
        unchecked=inside.unchecked,
        bytes=inside.bytes,
        recovery=command if complete and isinstance(store, LocalStore) else "",
    )
