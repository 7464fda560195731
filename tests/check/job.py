"""Writes a small job and looks at its code."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from keepstep.check.finding import Finding, Report
from keepstep.check.launch import Launch, read_launch
from keepstep.check.leap import read_leap
from keepstep.check.look import look_at_code
from keepstep.check.question import Question

IMPORTS = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
"""

# How a job that is ready for 2.15 begins and ends.
READY = """
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank), timeout=limit)
"""
END = "\ndist.destroy_process_group()\n"


def write_job(folder: Path, *parts: str, name: str = "train.py") -> Path:
    """Write a script made of these parts."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(textwrap.dedent, parts)))
    return path


def question(
    script: Path,
    *,
    old: str = "2.14",
    new: str = "2.15",
    launch: str = "",
    environment: Mapping[str, str] | None = None,
) -> Question:
    """Ask about a script, on no machine in particular."""
    return Question(
        script=script,
        leap=read_leap(old, new),
        launch=read_launch(launch) if launch else Launch(),
        environment=environment or {},
    )


def look_at(
    folder: Path,
    *parts: str,
    old: str = "2.14",
    new: str = "2.15",
    launch: str = "",
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Look at the code of a script made of these parts."""
    script = write_job(folder, *parts)
    asked = question(script, old=old, new=new, launch=launch, environment=environment)
    return look_at_code(asked)[0]


def found(report: Report, code: str) -> list[Finding]:
    """Return the findings of one rule."""
    return [each for each in report.findings if each.code == code]


def codes(report: Report) -> set[str]:
    """Return the codes of all findings."""
    return {each.code for each in report.findings}
