"""Checks of a folder of safetensors files, as HuggingFace and PyTorch's writer for it leave them.

A file begins with the length of its header (8 bytes, little endian) and the header, which is JSON:
dtype, shape and place of each tensor. The bytes of the tensors follow without gaps. There is no
checksum, so whether a tensor's bytes are those that were written cannot be known.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from typing import Any

from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.findings import Finding, Verification, Weight, heaviest_first
from keepstep.checkpoint.readers import HF_INDEX
from keepstep.checkpoint.store import File, Store

SUFFIX = ".safetensors"

_LONGEST = 100_000_000  # bytes of a header; the format allows no more
_SHOWN = 100  # findings of one kind about one file

# Bits of an element, by the format's names.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

# model-00001-of-00003.safetensors; shard-00002-model-00001-of-00003.safetensors
_NUMBERED = re.compile(r"(?P<kind>.*?)-?(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")

_NO_CHECKSUM = "whose bytes cannot be checked: a safetensors file has no checksum"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor, or a shard of one, in a file: begin and end in bytes after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    offsets: tuple[int, ...] | None  # of a shard in its tensor, in elements

    @property
    def wanted(self) -> int | None:
        """The bytes that its shape needs; None for a dtype that is not known here."""
        bits = _BITS.get(self.dtype)
        return None if bits is None else (prod(self.shape) * bits + 7) // 8


def verify_safetensors(store: Store, files: dict[str, File]) -> Verification:
    """Check that files, headers, sizes and index of a folder of safetensors files agree."""
    findings: list[Finding] = []
    found: dict[str, list[_Tensor]] = {}
    for name in sorted(name for name in files if name.endswith(SUFFIX)):
        try:
            found[name] = _read(store, name, files[name].size)
        except UnsafeMetadataError as error:
            findings.append(Finding(Weight.DAMAGE, "header", name, str(error)))
            continue
        findings += _places(name, found[name], files[name].size - _end_of_header(store, name))
    gaps = _numbers(files)
    findings += gaps
    if HF_INDEX in files:
        findings += _index(store, files, found, {gap.file for gap in gaps})
    else:
        findings += _shards(found)
    return Verification(
        findings=heaviest_first(findings),
        unchecked=sum(map(len, found.values())),
        why_unchecked=_NO_CHECKSUM,
    )


def _end_of_header(store: Store, name: str) -> int:
    return 8 + int.from_bytes(store.read(name, 0, 8), "little")


def _read(store: Store, name: str, size: int) -> list[_Tensor]:
    """Return the tensors of a file in the order of their bytes."""
    end = _end_of_header(store, name) if size >= 8 else 8
    if end > size:
        raise UnsafeMetadataError(f"{size} bytes; its header alone would end at byte {end}")
    if end > 8 + _LONGEST:
        raise UnsafeMetadataError(f"a header of {end - 8} bytes; the format allows {_LONGEST}")
    header = _json(store.read(name, 8, end))
    told = header.pop("__metadata__", {})
    offsets = _sharding(told)
    found = [_tensor(each, entry, offsets.get(each)) for each, entry in header.items()]
    return sorted(found, key=lambda tensor: (tensor.begin, tensor.end))


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_no_name_twice)
    except (ValueError, RecursionError) as error:
        raise UnsafeMetadataError(f"it is no JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise UnsafeMetadataError("it is no JSON object")
    return found


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _sharding(told: Any) -> dict[str, tuple[int, ...]]:
    """Return where the shards of a distributed save begin, as PyTorch notes it; else nothing."""
    if not isinstance(told, dict) or not isinstance(told.get("DCP_SHARDING_INFO"), str):
        return {}
    info = _json(told["DCP_SHARDING_INFO"].encode())
    return {
        name: _sizes(entry.get("saved_offsets"))
        for name, entry in info.items()
        if isinstance(entry, dict)
    }


def _tensor(name: str, entry: Any, offsets: tuple[int, ...] | None) -> _Tensor:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise UnsafeMetadataError(f"{name:.200}: an entry without a dtype")
    shape, place = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if len(place) != 2 or place[0] > place[1]:
        raise UnsafeMetadataError(f"{name:.200}: data_offsets that are not begin and end")
    return _Tensor(name, entry["dtype"], shape, *place, offsets)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int or each < 0 for each in value):
        raise UnsafeMetadataError(f"{value!s:.100} where sizes belong")
    return tuple(value)


def _places(file: str, tensors: list[_Tensor], size: int) -> list[Finding]:
    """Check that the tensors fill the ``size`` bytes after the header, and fit their shapes."""
    texts = []
    at = 0
    for tensor in tensors:
        if tensor.begin < at:
            texts.append(f"{tensor.name}: it begins {at - tensor.begin} bytes before the last ends")
        elif tensor.begin > at:
            texts.append(f"{tensor.name}: {tensor.begin - at} bytes before it belong to no tensor")
        at = max(at, tensor.end)
        stored, wanted = tensor.end - tensor.begin, tensor.wanted
        if wanted is not None and stored != wanted:
            texts.append(
                f"{tensor.name}: {stored} bytes; {wanted} belong to {tensor.dtype} of shape "
                f"{list(tensor.shape)}"
            )
    found = [Finding(Weight.DAMAGE, "layout", file, text) for text in texts[:_SHOWN]]
    if at > size:
        text = f"{size} bytes after its header, which speaks of {at}"
        found.append(Finding(Weight.DAMAGE, "short-file", file, text))
    elif at < size:
        text = f"{size - at} bytes more than its header knows of: readers refuse it"
        found.append(Finding(Weight.DAMAGE, "long-file", file, text))
    return found


def _numbers(files: dict[str, File]) -> list[Finding]:
    """Look for the gaps in model-00001-of-00003 and so on."""
    seen: dict[tuple[str, str], set[int]] = {}
    for name in files:
        if match := _NUMBERED.fullmatch(name):
            seen.setdefault((match["kind"], match["count"]), set()).add(int(match["number"]))
    found = []
    for (kind, count), numbers in sorted(seen.items()):
        if kind.rpartition("/")[2].startswith("shard-"):
            continue  # a rank has no file for a number of which it holds nothing
        lacking = [n for n in range(1, min(int(count), 100_000) + 1) if n not in numbers]
        for number in lacking[:_SHOWN]:
            name = f"{kind}-{number:05}-of-{count}{SUFFIX}"
            text = f"missing; {len(numbers)} of {int(count)} are there"
            found.append(Finding(Weight.DAMAGE, "missing-file", name, text))
    return found


def _index(
    store: Store, files: dict[str, File], found: dict[str, list[_Tensor]], gaps: set[str]
) -> list[Finding]:
    """Compare what the index says with what is in the files; ``gaps`` are known to be missing."""
    try:
        if files[HF_INDEX].size > _LONGEST:
            raise UnsafeMetadataError(f"{files[HF_INDEX].size} bytes; wanted at most {_LONGEST}")
        index = _json(store.read(HF_INDEX, 0, files[HF_INDEX].size))
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(type(v) is str for v in places.values()):
            raise UnsafeMetadataError("it has no weight_map from tensors to files")
    except UnsafeMetadataError as error:
        return [Finding(Weight.DAMAGE, "index", HF_INDEX, str(error))]
    findings = [
        Finding(Weight.DAMAGE, "missing-file", name, f"missing; {HF_INDEX} stores tensors in it")
        for name in sorted(set(places.values()) - files.keys() - gaps)
    ]
    held = {name: {tensor.name for tensor in tensors} for name, tensors in found.items()}
    for tensor, name in places.items():
        if name in held and tensor not in held[name]:
            text = f"{tensor}: {HF_INDEX} says that it is here, and it is not"
            findings.append(Finding(Weight.DAMAGE, "missing-tensor", name, text))
    for name, tensors in held.items():
        if "/" not in name and (extra := sorted(each for each in tensors if each not in places)):
            text = (
                f"{extra[0]} and {len(extra) - 1} more are here, and {HF_INDEX} does not know them"
            )
            findings.append(Finding(Weight.SUSPECT, "unknown-tensor", name, text))
    return findings + _total(index, places, found) + _times(files, set(places.values()))


def _total(
    index: dict[str, Any], places: dict[str, str], found: dict[str, list[_Tensor]]
) -> list[Finding]:
    told = index.get("metadata")
    total = told.get("total_size") if isinstance(told, dict) else None
    if set(places.values()) - found.keys() or total is None:
        return []
    size = sum(
        tensor.end - tensor.begin
        for name in set(places.values())
        for tensor in found[name]
        if places.get(tensor.name) == name
    )
    if total == size:
        return []
    text = f"total_size {total!s:.30}; the tensors that it names have {size} bytes"
    return [Finding(Weight.SUSPECT, "total-size", HF_INDEX, text)]


def _times(files: dict[str, File], named: set[str]) -> list[Finding]:
    saved = files[HF_INDEX].modified
    text = (
        f"written after {HF_INDEX}, which a save writes last: where this was not downloaded or "
        "copied file by file, it may belong to another save that was cut off"
    )
    return [
        Finding(Weight.NOTE, "newer-than-metadata", name, text)
        for name in sorted(named & files.keys())
        if saved is not None and (written := files[name].modified) is not None and written > saved
    ]


def _shards(found: dict[str, list[_Tensor]]) -> list[Finding]:
    """Check the shards of a distributed save, which has no index, folder by folder."""
    shards: dict[tuple[str, str], list[tuple[str, _Tensor]]] = {}
    for file, tensors in found.items():
        for tensor in tensors:
            folder = file.rpartition("/")[0]
            shards.setdefault((folder, tensor.name), []).append((file, tensor))
    findings = []
    for (_, name), parts in sorted(shards.items()):
        file = parts[0][0]
        text = _cover(name, [tensor for _, tensor in parts])
        if text:
            findings.append(Finding(Weight.DAMAGE, "structure", file, text))
    return findings


def _cover(name: str, parts: list[_Tensor]) -> str:
    """Return what is wrong with the shards of one tensor, which ends where the last one does."""
    if len(parts) > 1 and any(part.offsets is None for part in parts):
        return f"{name}: it is in {len(parts)} files, and none says which part of it is where"
    if len({(part.dtype, len(part.shape)) for part in parts}) > 1:
        return f"{name}: its shards differ in dtype or in the number of dimensions"
    begins = [part.offsets or (0,) * len(part.shape) for part in parts]
    if any(len(b) != len(part.shape) for b, part in zip(begins, parts, strict=True)):
        return f"{name}: a shard whose offsets do not fit its shape"
    ends = [
        tuple(map(sum, zip(b, part.shape, strict=True)))
        for b, part in zip(begins, parts, strict=True)
    ]
    whole = prod(map(max, zip(*ends, strict=True))) if ends[0] else 1
    held = sum(prod(part.shape) for part in parts)
    return "" if held == whole else f"{name}: its shards hold {held} of {whole} elements"
