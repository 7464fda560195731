"""Reads what this machine has: driver, GPUs, fabric manager, shared memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 10  # for nvidia-smi, which waits for a driver that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """None where it cannot be read."""

    gpus: tuple[str, ...] | None = None  # architectures, such as sm_90; (): there are none
    driver: str | None = None
    fabric_manager: str | None = None
    shared_memory: int | None = None  # bytes of /dev/shm


def read_machine() -> MachineFacts:
    """Return what can be read here. CUDA is not initialised."""
    answer = _said(("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"))
    return MachineFacts(
        gpus=_architectures(answer),
        driver=_driver(),
        fabric_manager=_version(_said(("nv-fabricmanager", "--version"))),
        shared_memory=_shared_memory(),
    )


def _architectures(answer: str | None) -> tuple[str, ...] | None:
    found = re.findall(r"^(\d+)\.(\d+)$", answer or "", re.MULTILINE)
    return tuple(f"sm_{major}{minor}" for major, minor in found) or None


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"(?:Kernel Module|Open Kernel Module)\D*?(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else None


def _version(text: str | None) -> str | None:
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", text or "")
    return match[1] if match else None


def _said(command: Sequence[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _shared_memory() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_frsize * found.f_blocks
