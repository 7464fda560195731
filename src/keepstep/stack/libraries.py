"""The shared libraries that a process has really loaded, and the NCCL among them.

Standard library only, Python 3.10: it runs in the process of a training job.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable
from typing import Any

# What computes, communicates or decides how: by the beginning of the file's name.
_MATTER = re.compile(
    r"lib(torch|c10|shm|nccl|rccl|cuda|cudart|cudnn|cublas|cufft|cusparse|cusolver|curand|cufile|"
    r"nvrtc|nvJitLink|nvshmem|cupti|nvidia-ml|amdhip|hsa|rocm|roc|hip|gloo|mpi|ucc|uc[pst]|nixl|"
    r"ibverbs|rdmacm|gomp|iomp|omp|mkl|openblas)"
)
# Of these a process must have one; a second is another state, or another version, beside it.
_ONCE = re.compile(
    r"lib(torch|c10|nccl|rccl|cudart|cudnn|cublas|cufft|cusparse|cusolver|nvrtc|nvJitLink|nvshmem|"
    r"cupti|cuda)"
)
_SHARED = re.compile(r"(lib[^/]+?)(?:-[0-9a-f]{8,})?\.so(?:\.[\d.]+)?")

_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3


def loaded_libraries(maps: str = "/proc/self/maps") -> list[dict[str, Any]]:
    """Return name, path and build id of each loaded library that matters, by name and path."""
    with open(maps) as file:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line}
    found = []
    for path in sorted(paths):
        name = os.path.basename(path)
        if _MATTER.match(name) and _SHARED.fullmatch(name):
            found.append({"name": name, "path": path, "build_id": build_id(path)})
    return sorted(found, key=lambda each: (each["name"], each["path"]))


def duplicates(libraries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the libraries of which a process has loaded two: never by intention.

    Each finding has the name without version, the paths, and whether the builds differ.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in libraries:
        match = _SHARED.fullmatch(each["name"])
        if match and _ONCE.match(each["name"]):
            by_name.setdefault(match[1], []).append(each)
    return [
        {
            "name": name,
            "paths": [each["path"] for each in found],
            "different": len({each["build_id"] for each in found}) > 1,
        }
        for name, found in sorted(by_name.items())
        if len(found) > 1
    ]


def nccl_version(libraries: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return version and path of the NCCL that is loaded; None where none is."""
    for each in libraries:
        if each["name"].startswith(("libnccl.so", "librccl.so")):
            number = ctypes.c_int()
            library = ctypes.CDLL(each["path"], mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
            if library.ncclGetVersion(ctypes.byref(number)) == 0:
                return {"version": _nccl_text(number.value), "path": each["path"]}
    return None


def build_id(path: str) -> str | None:
    """Return the build id of an ELF file of 64 bits, None where it has none or is gone."""
    try:
        with open(path, "rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
                return None
            (offset,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            table = file.read(size * count)
            for position in range(0, len(table) - 55, size):
                kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", table, position)
                if kind == _PT_NOTE and length < 1 << 16:
                    file.seek(at)
                    if found := _build_id_note(file.read(length)):
                        return found
    except (OSError, struct.error):
        pass
    return None


def _build_id_note(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[start : start + size].hex()
        at = start + (size + 3) // 4 * 4
    return None


def _nccl_text(number: int) -> str:
    """Return NCCL's number as text; until 2.8 its places were other ones."""
    if number < 10_000:
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"
