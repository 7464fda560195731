"""What a directory for dumps is like: the facts that ``delivery`` judges."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# File systems whose content goes with the container, the pod or the machine's next start.
EPHEMERAL = frozenset(("overlay", "fuse.fuse-overlayfs", "aufs", "tmpfs", "ramfs", "devtmpfs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The directory of a dump as one host sees it, before the job starts."""

    exists: bool
    writable: bool
    free_bytes: int
    file_system: str = ""  # "overlay", "ext4", ...; "" where unknown
    mount_point: str = ""
    prefix_is_directory: bool = False  # the prefix itself is an existing directory


def observe(prefix: str) -> Disk:
    """Return what is true now, on this host, for dumps that begin with ``prefix``."""
    directory = Path(prefix).parent.absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    mount_point, file_system = mount_of(mounts, str(existing.resolve()))
    return Disk(
        exists=directory.is_dir(),
        writable=os.access(existing, os.W_OK | os.X_OK),
        free_bytes=shutil.disk_usage(existing).free,
        file_system=file_system,
        mount_point=mount_point,
        prefix_is_directory=Path(prefix).is_dir(),
    )


def mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    """Return mount point and file-system type for an absolute ``path``.

    ``mountinfo`` is the content of /proc/self/mountinfo, proc_pid_mountinfo(5). ("", "") where no
    line fits.
    """
    best = ("", "")
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after.split():
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):  # of two at one place, the later one is on top
            best = (point, after.split()[0])
    return best


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
