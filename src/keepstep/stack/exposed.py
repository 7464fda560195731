"""This package, and nothing else of this environment, for the interpreter of another stack."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from keepstep.stack.named import cache_directory


def exposed() -> Path:
    """Return a folder that holds nothing but a link ``keepstep`` to this package.

    On the PYTHONPATH of a foreign interpreter it makes ``keepstep.stack.fingerprint`` and
    ``keepstep.probe`` importable, and none of the packages that keepstep itself uses.
    """
    package = Path(__file__).resolve().parent.parent
    key = hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
    folder = cache_directory() / "exposed" / key
    link = folder / "keepstep"
    if not (link.is_symlink() and os.readlink(link) == str(package)):
        _link(link, package)
    return folder


def on_path(variables: dict[str, str]) -> dict[str, str]:
    """Return ``variables`` with PYTHONPATH begun by that folder.

    What was on the path stays behind it: a job's own modules are found as before.
    """
    before = variables.get("PYTHONPATH", "")
    path = f"{exposed()}{os.pathsep}{before}" if before else str(exposed())
    return {**variables, "PYTHONPATH": path}


def _link(link: Path, package: Path) -> None:
    """Put the link in place in one step, whoever else does it at the same time."""
    link.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=link.parent.parent) as folder:
        made = Path(folder) / link.name
        made.symlink_to(package)
        os.replace(made, link)
