"""Named stacks: the environments in which jobs run, each in a folder of the user's cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keepstep.stack.errors import BadRequestError, DamagedStackError, UnknownStackError

STACK = "stack.json"  # written last: a folder without it holds no stack
AT_CREATION = "fingerprint.json"  # what the stack was when it was made
LOCK = "requirements.txt"  # what is installed in it, with hashes
ENVIRONMENT = "env"
LAUNCHER = "python"  # starts the interpreter of a stack behind a launcher prefix

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A named environment: interpreter, PyTorch, packages, variables."""

    name: str
    python: str  # path of the interpreter, behind the prefix if there is one
    prefix: tuple[str, ...] = ()  # what starts a container, such as ("docker", "run", "image")
    variables: dict[str, str] = field(default_factory=dict)  # that its jobs get
    torch: str = ""  # the version asked for, or found when none was
    origin: str = "created"  # created, python (an interpreter that was there) or adopted
    made: str = ""  # ISO 8601, UTC
    lock_sha256: str = ""  # of what was installed; "" for what keepstep did not install
    bytes: int = 0  # of its files
    own_bytes: int = 0  # of those that are not hard links into the installer's cache

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs its interpreter with ``arguments``."""
        return [*self.prefix, self.python, *arguments]

    @property
    def folder(self) -> Path:
        """Where keepstep keeps it."""
        return stack_folder(self.name)

    @property
    def launcher(self) -> str:
        """One path that starts its interpreter, also where that is behind a prefix."""
        return str(self.folder / LAUNCHER) if self.prefix else self.python


def cache_directory(variables: Mapping[str, str] = os.environ) -> Path:
    """Return keepstep's directory in the user's cache."""
    configured = variables.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is invalid and to be ignored.
    home = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return home / "keepstep"


def stacks_directory() -> Path:
    """Return the folder of all named stacks."""
    return cache_directory() / "stacks"


def stack_folder(name: str) -> Path:
    """Return the folder of a stack, whether there is one or not.

    Raises:
        BadRequestError: The name cannot be a folder's.
    """
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"{name!r} cannot name a stack: wanted up to 64 letters, digits and . _ + -, and a "
            "letter or digit first, such as 2.14.1"
        )
    return stacks_directory() / name


def find_stack(name: str) -> Stack:
    """Return a stack by its name.

    Raises:
        BadRequestError: The name cannot be a stack's.
        UnknownStackError: There is none; says which exist and the command that makes one.
        DamagedStackError: There is one, and what says how it was made cannot be read.
    """
    folder = stack_folder(name)
    found = read_stack(folder)
    if found is None and (folder / STACK).exists():
        raise DamagedStackError(
            f"the stack {name} is damaged: {folder / STACK} is not what keepstep wrote; remove it "
            f"(keepstep stack remove {name}) and make it again"
        )
    if found is None:
        raise UnknownStackError(_unknown(name))
    return found


def all_stacks() -> tuple[Stack, ...]:
    """Return every stack, by name."""
    return tuple(stack for folder in _folders() if (stack := read_stack(folder)))


def unfinished_stacks() -> tuple[str, ...]:
    """Return the names of folders whose stack was never finished."""
    return tuple(folder.name for folder in _folders() if read_stack(folder) is None)


def read_stack(folder: Path) -> Stack | None:
    """Return the stack in a folder; None where there is none, or none that is complete."""
    try:
        facts = json.loads((folder / STACK).read_text())
        facts["prefix"] = tuple(facts["prefix"])
        return Stack(**facts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def at_creation(stack: Stack) -> dict[str, Any] | None:
    """Return the fingerprint that a stack had when it was made; None where it is not known."""
    try:
        found = json.loads((stack.folder / AT_CREATION).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def to_json(stack: Stack) -> dict[str, Any]:
    """Return what stack.json holds."""
    return asdict(stack)


def _folders() -> list[Path]:
    try:
        entries = sorted(stacks_directory().iterdir())
    except FileNotFoundError:
        return []
    return [entry for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir()]


def _unknown(name: str) -> str:
    there = ", ".join(stack.name for stack in all_stacks()) or "none"
    version = name if re.fullmatch(r"\d+\.\d+\.\d+", name) else "2.15.0"
    text = f"there is no stack {name} (there is: {there})"
    if full := [stack.name for stack in all_stacks() if stack.name.startswith(f"{name}.")]:
        return f"{text}; did you mean {full[-1]}?"
    if name in unfinished_stacks():
        text = f"the stack {name} was never finished"
    return f"{text}; make it: keepstep stack create {name} --torch {version}"
