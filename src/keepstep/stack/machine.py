"""Driver, GPUs, links and limits of the machine, as the running process sees them.

Standard library only, Python 3.10. NVML is asked directly (``libnvidia-ml.so.1`` comes with the
driver): it makes no CUDA context, and the packages that wrap it call the same functions.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROC = Path("/proc/driver/nvidia")
_MOST_LINKS = 18  # NVLinks of a GPU
_PATHS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_CGROUP = Path("/sys/fs/cgroup")


class NoDriverError(Exception):
    """There is no driver to ask; the text is the reason."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong)]
    _fields_ += [("used", ctypes.c_ulonglong)]


class _Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16)]
    _fields_ += [(name, ctypes.c_uint) for name in ("domain", "bus", "device", "ids", "sub")]
    _fields_ += [("bus_id", ctypes.c_char * 32)]


def driver_and_gpus() -> tuple[str | None, list[dict[str, Any]], dict[str, str]]:
    """Return the driver's version, the GPUs of the machine, and how each two are joined.

    Raises:
        NoDriverError: There is neither NVML nor what the kernel module shows.
    """
    try:
        with _nvml() as nvml:
            handles = [_handle(nvml, index) for index in range(_count(nvml))]
            gpus = [_gpu(nvml, index, handle) for index, handle in enumerate(handles)]
            return _said(nvml.nvmlSystemGetDriverVersion, 80), gpus, _links(nvml, handles, gpus)
    except (OSError, AttributeError) as error:
        if not (_PROC / "version").exists():
            raise NoDriverError(f"no NVML ({error}) and no {_PROC}") from None
        return _from_proc()


def limits() -> dict[str, Any]:
    """Return what the container or the user's session allows; None where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "shm_bytes": _shm_bytes(),
        "memlock": None if soft == resource.RLIM_INFINITY else soft,
        "files": None if files == resource.RLIM_INFINITY else files,
        "memory": _cgroup_memory(),
        "cpus": _cgroup_cpus(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
    }


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if status := nvml.nvmlInit_v2():
        raise OSError(f"nvmlInit answered {status}")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def _handle(nvml: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    return handle


def _gpu(nvml: ctypes.CDLL, index: int, handle: ctypes.c_void_p) -> dict[str, Any]:
    memory, pci = _Memory(), _Pci()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
    nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return {
        "index": index,
        "name": _said(nvml.nvmlDeviceGetName, 96, handle),
        "uuid": _said(nvml.nvmlDeviceGetUUID, 96, handle),
        "pci": pci.bus_id.decode(errors="replace") or None,
        "memory_bytes": memory.total or None,
        "capability": f"{major.value}.{minor.value}" if major.value else None,
        "nvlinks": _nvlinks(nvml, handle),
    }


def _said(function: Any, size: int, *arguments: Any) -> str | None:
    """Return the text that a function of NVML writes into a buffer."""
    buffer = ctypes.create_string_buffer(size)
    if function(*arguments, buffer, ctypes.c_uint(size)) != 0:
        return None
    return buffer.value.decode(errors="replace")


def _nvlinks(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    active = ctypes.c_uint()
    count = 0
    for link in range(_MOST_LINKS):
        if nvml.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(active)) == 0:
            count += active.value
    return count


def _links(
    nvml: ctypes.CDLL, handles: list[ctypes.c_void_p], gpus: list[dict[str, Any]]
) -> dict[str, str]:
    """Return by "0-1" how two GPUs are joined: NVLinks where both have them, else the PCI path."""
    found = {}
    level = ctypes.c_int()
    for first, one in enumerate(handles):
        for second in range(first + 1, len(handles)):
            other = handles[second]
            if nvml.nvmlDeviceGetTopologyCommonAncestor(one, other, ctypes.byref(level)) != 0:
                continue
            path = _PATHS.get(level.value, f"level {level.value}")
            lines = min(gpus[first]["nvlinks"], gpus[second]["nvlinks"])
            found[f"{first}-{second}"] = f"NV{lines}, {path}" if lines else path
    return found


def _from_proc() -> tuple[str | None, list[dict[str, Any]], dict[str, str]]:
    match = re.search(r"Module\s+(?:for \S+\s+)?(\d[\d.]+)", (_PROC / "version").read_text())
    gpus = []
    for index, path in enumerate(sorted((_PROC / "gpus").glob("*/information"))):
        facts = dict(re.findall(r"^(.+?):\s+(.+)$", path.read_text(), re.MULTILINE))
        pci = {"pci": path.parent.name, "memory_bytes": None, "capability": None, "nvlinks": None}
        gpus.append(
            {"index": index, "name": facts.get("Model"), "uuid": facts.get("GPU UUID"), **pci}
        )
    return match[1] if match else None, gpus, {}


def _shm_bytes() -> int | None:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


def _cgroup_memory() -> int | None:
    """Return the least memory limit (bytes) of this process's cgroup and those above it."""
    said = [*_cgroup("memory.max", ""), *_cgroup("memory.limit_in_bytes", "memory")]
    found = [int(text) for text in said if text.isdigit()]
    return min((limit for limit in found if limit < 1 << 60), default=None)


def _cgroup_cpus() -> float | None:
    """Return the least number of CPUs by quota of this process's cgroup and those above it."""
    found = []
    for text in _cgroup("cpu.max", ""):
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            found.append(int(quota) / int(period))
    quotas, periods = _cgroup("cpu.cfs_quota_us", "cpu"), _cgroup("cpu.cfs_period_us", "cpu")
    found += [int(a) / int(b) for a, b in zip(quotas, periods) if int(a) > 0]  # noqa: B905
    return min(found, default=None)


def _cgroup(name: str, controller: str) -> list[str]:
    """Return what a file says in each cgroup from this process's up to the root.

    Args:
        name: Of the file.
        controller: Of the first version, where each has a tree of its own; "" for the second.
    """
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    paths = [path for _, names, path in lines if controller in names.split(",")]
    found = []
    for path in paths:
        here = Path(path.lstrip("/"))
        for folder in (here, *here.parents):
            try:
                found.append((_CGROUP / controller / folder / name).read_text().strip())
            except OSError:  # the root has none; in a container the path may lie outside
                continue
    return found
