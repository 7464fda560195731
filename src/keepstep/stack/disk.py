"""What a stack costs on the disk, and whether there is room for one more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from keepstep.stack.errors import NoSpaceError

# torch 2.15.0 with its CUDA libraries is 5.3 GB unpacked in uv's cache, and its wheels are streamed
# there. Another environment of the same wheels is hard links into that cache and compiled files.
SPACE_FIRST_TIME = 7 * 10**9
SPACE_LATER = 10**9


def check_space(folder: Path, *, wanted: int) -> None:
    """Raise NoSpaceError when the file system of ``folder`` has less room than ``wanted`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise NoSpaceError(
            f"{free / 1e9:.1f} GB are free in {folder}; a stack wants {wanted / 1e9:.0f} GB. Free "
            "some space (keepstep stack list shows what stacks take), or set XDG_CACHE_HOME to a "
            "folder on a larger disk"
        )


def wanted_space(torch: str, installer_cache: Path, folder: Path) -> int:
    """Return how many bytes a new environment with this PyTorch wants at most.

    Args:
        torch: The version, such as 2.14.1; "" where it is not known.
        installer_cache: Where uv keeps what it has unpacked.
        folder: Where the environment is to be.
    """
    unpacked = torch != "" and any(installer_cache.glob(f"archive-v*/*/torch-{torch}*.dist-info"))
    return SPACE_LATER if unpacked and _links(installer_cache, folder) else SPACE_FIRST_TIME


def sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes below a folder on the disk, and those that no other folder shares.

    A file with several hard links is shared: with the installer's cache, and with other stacks.
    """
    total = own = 0
    for path, _, names in os.walk(folder):
        for name in names:
            stat = os.lstat(os.path.join(path, name))
            size = stat.st_blocks * 512
            total += size
            own += size if stat.st_nlink == 1 else 0
    return total, own


def _links(installer_cache: Path, folder: Path) -> bool:
    """Tell whether hard links from one to the other are possible."""
    return os.stat(installer_cache).st_dev == os.stat(folder).st_dev
