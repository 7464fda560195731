"""What ``keepstep run`` tells the agent of a host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """What ``keepstep run`` tells the agent."""

    name: str
    host: str  # address under which other hosts reach this one
    coordinator: tuple[str, int]
    secret: str
    workers: int
    spares: int
    backend: str
    command: list[str]
    vault: Path
    output: tuple[int | None, int | None] = (None, None)  # descriptors for the workers' output
    python: str = sys.executable  # the workers' interpreter
    import_from: str = ""  # where another interpreter than ours finds this package
    incidents: Path = Path("incidents")  # folder for what was left of each fault
    kept_incidents: int = 0  # the newest ones; 0: none are written
