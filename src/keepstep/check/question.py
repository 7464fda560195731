"""What a look is asked: a script, a leap, and what is known beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.check.launch import Launch
from keepstep.check.leap import Leap


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts about the machine that the user states, because it is another one."""

    gpus: tuple[str, ...] | None = None  # such as sm_90; (): a machine without one
    driver: str | None = None
    fabric_manager: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One look."""

    script: Path
    leap: Leap
    launch: Launch = field(default_factory=Launch)
    python: tuple[str, ...] = ()  # the command of the stack's interpreter; (): none was asked for
    stack: str = ""  # its name, for messages
    wished_torch: str = ""  # that the stack was made with; "" where none was named
    include: tuple[Path, ...] = ()
    groups: tuple[str, ...] = ()  # layouts to count, such as mesh=dp:512,tp:8
    given: Given = field(default_factory=Given)
    environment: Mapping[str, str] = field(default_factory=dict)
