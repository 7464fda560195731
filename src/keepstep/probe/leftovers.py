"""What a process leaves behind: threads, children, shared memory, groups, recorder dumps."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_SHARED = Path("/dev/shm")
# By its name in 2.15, in all that know a recorder, and the place where it writes without either.
_DUMP_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# Python ends this one itself once nothing needs it.
_EXPECTED = "multiprocessing.resource_tracker"


def threads(known: set[int | None]) -> list[str]:
    """Return the Python threads that run beside this one.

    Args:
        known: Idents of threads that the job did not start.
    """
    return [
        f"thread {each.name}{' (daemon)' if each.daemon else ''}"
        for each in threading.enumerate()
        if each is not threading.current_thread()
        and each is not threading.main_thread()
        and each.ident not in known
    ]


def children() -> list[str]:
    """Return the living children of this process, by their command."""
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == own and _EXPECTED not in command:
            state = " (ended, not waited for)" if fields[0] == "Z" else ""
            found.append(f"child {' '.join(command.split())[:100] or 'process'}{state}")
    return found


def shared_memory(before: set[str]) -> list[str]:
    """Return the files in shared memory that are this process's.

    Args:
        before: The names that were there when it began.
    """
    own = str(os.getpid())
    try:
        mapped = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        mapped = ""
    return [
        f"shared memory {name}"
        for name in sorted(shared_names() - before)
        if own in name or f"{_SHARED / name}" in mapped
    ]


def shared_names() -> set[str]:
    """Return the names in shared memory."""
    try:
        return set(os.listdir(_SHARED))
    except OSError:
        return set()


def dumps(since: float) -> list[str]:
    """Return the recorder dumps of this rank that were written after ``since`` (Unix time)."""
    rank, found = os.environ.get("RANK", "0"), []
    for prefix in _dump_prefixes():
        path = f"{prefix}{rank}"
        try:
            if os.stat(path).st_mtime >= since - 1.0 and path not in found:
                found.append(path)
        except OSError:
            continue  # none was written there
    return found


def _dump_prefixes() -> list[str]:
    named = [os.environ[name] for name in _DUMP_NAMES if os.environ.get(name)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return named or [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]
