"""C++ and CUDA sources beside the script: casts to the legacy backend (KS202)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from keepstep.check.finding import Finding, NotLooked
from keepstep.check.rules import RULES
from keepstep.check.scene import Scene

MOST_ENTRIES = 20_000  # of the folder; a script that lies in a home directory must not cost minutes
MOST_BYTES = 4 << 20  # of one source

_CAST = re.compile(r"(?:dynamic|static)_(?:pointer_)?cast<[^>]*\bProcessGroupNCCL\b[^>]*>")
_SUFFIXES = {".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh"}
_OTHERS = {"site-packages", "dist-packages", "node_modules", "__pycache__"}


def casts(scene: Scene, folder: Path) -> tuple[list[Finding], list[NotLooked]]:
    """Return casts in the sources under the script's folder."""
    if scene.leap.new < 15:
        return [], []
    paths, whole = _sources(folder)
    findings = [finding for path in paths for finding in _of_file(path)]
    if whole:
        return findings, []
    cut = NotLooked(
        what=f"C++ and CUDA sources under {folder}",
        why=f"the folder has more than {MOST_ENTRIES:,} entries; the first were looked at",
        matters=False,
        mend="grep -rn 'cast<.*ProcessGroupNCCL' in the folder of your extensions",
    )
    return findings, [cut]


def _sources(folder: Path) -> tuple[list[Path], bool]:
    """Return the sources of a tree, and whether it was walked to its end."""
    found: list[Path] = []
    entries = 0
    for above, names, files in os.walk(folder):
        entries += len(names) + len(files)
        if entries > MOST_ENTRIES:
            return found, False
        names[:] = sorted(
            name
            for name in names
            if name not in _OTHERS
            and not name.startswith(".")
            and not os.path.exists(os.path.join(above, name, "pyvenv.cfg"))
        )
        found += [Path(above, name) for name in sorted(files) if Path(name).suffix in _SUFFIXES]
    return found, True


def _of_file(path: Path) -> Iterator[Finding]:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        if match := _CAST.search(line):
            yield RULES["KS202"].here(
                f"{match[0]}: a cast in C++",
                file=_shown(path),
                line=number,
                column=match.start() + 1,
            )


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
