"""Fail when a file names a place that exists on one machine only, or the address of an index.

Scans every file that git tracks or would add. Prints `file:line: what` for each finding and exits
with 1 when there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# A path is absolute when its first slash follows nothing that could be a part of a path or address.
_ABSOLUTE = r"(?<![\w.~)}>\]*/-])/"

# One letter of each pattern stands in brackets, so that this file does not match itself.
PATTERNS = {
    "machine path": re.compile(
        _ABSOLUTE
        + r"(?:wor[k]/|roo[t]/|hom[e]/\w|User[s]/\w|tm[p]/bash_jobs|op[t]/(?:wheels|pypi))"
    ),
    "package index address": re.compile(
        r"pyp[i]\.org/simple|pythonhoste[d]\.org|downloa[d]\.pytorch\.org/whl|https?://\S+/simpl[e]\b"
    ),
}


class Finding(NamedTuple):
    """One line that names a machine's path or an index."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def files_of(root: Path) -> list[Path]:
    """Return the files that git tracks or would add, relative to ``root``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    names = sorted({name for name in listed.decode().split("\0") if name})
    return [Path(name) for name in names if (root / name).is_file()]


def findings_in(path: Path, content: bytes) -> Iterator[Finding]:
    """Yield what is wrong in one file; a binary file has no lines to read."""
    if b"\0" in content:
        return
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        for kind, pattern in PATTERNS.items():
            if pattern.search(line):
                yield Finding(path, number, kind, line.strip())


def main() -> int:
    """Print every finding; return the exit code."""
    found = [
        finding
        for path in files_of(ROOT)
        for finding in findings_in(path, (ROOT / path).read_bytes())
    ]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
