"""The folders of a run's checkpoints: which are complete, which are not, which may go.

``step-000050`` is a complete checkpoint: it got this name when all of it was on the disk. What else
begins with such a name has a suffix, and no reader takes it for a checkpoint:

* ``.G.saving``: a save of generation G that is under way, or was cut off;
* ``.set-aside``: the job went on from an earlier step.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

RECORD = "keepstep.json"  # what Job.train needs to go on from a checkpoint

_STEP = re.compile(r"step-(\d{6,})")
_CUT_OFF = re.compile(r"step-\d{6,}\.\d+\.saving")


def step_folder(root: Path, step: int) -> Path:
    """Return where the complete checkpoint of a step lies."""
    return root / f"step-{step:06d}"


def saving_folder(root: Path, step: int, generation: int) -> Path:
    """Return where it is written; a generation saves a step once."""
    return root / f"step-{step:06d}.{generation}.saving"


def steps_in(root: Path) -> list[int]:
    """Return the steps that have a folder with a final name, in order."""
    if not root.is_dir():
        return []
    found = (_STEP.fullmatch(entry.name) for entry in root.iterdir())
    return sorted({int(match[1]) for match in found if match})


def set_aside(root: Path, after: int) -> list[Path]:
    """Take their names from the checkpoints of later steps; return where they are now."""
    moved = []
    for step in steps_in(root):
        if step > after:
            folder = step_folder(root, step)
            aside = folder.with_name(f"{folder.name}.set-aside")
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # just pruned
                folder.rename(aside)
                moved.append(aside)
    return moved


def remove_cut_off(root: Path, *, but: set[str]) -> None:
    """Remove what saves that were cut off have left, except what is in ``but``."""
    for entry in root.iterdir() if root.is_dir() else ():
        if _CUT_OFF.fullmatch(entry.name) and entry.name not in but:
            shutil.rmtree(entry, ignore_errors=True)
