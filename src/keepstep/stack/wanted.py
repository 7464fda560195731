"""What is wanted of a stack: the request, checked before anything is done."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keepstep.stack.errors import BadRequestError
from keepstep.stack.uv import LOCKS
from keepstep.stack.variables import known

_VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for."""

    name: str
    torch: str  # "" for whatever is in it
    python: str  # of an interpreter that is there; "" when one is to be made
    requirements: Path | None
    origin: str
    prefix: tuple[str, ...]
    variables: dict[str, str]

    @property
    def lock(self) -> Path | None:
        """The file that says what is to be installed; None where it has to be resolved first."""
        if self.requirements is not None:
            return self.requirements
        shipped = LOCKS / f"torch-{self.torch}.txt"
        return shipped if shipped.exists() else None

    @property
    def pinned(self) -> str:
        """The PyTorch that will be installed, "" where that is not known before."""
        if self.torch or self.requirements is None:
            return self.torch
        match = re.search(r"^torch==([\w.]+)", self.requirements.read_text(), re.MULTILINE)
        return match[1] if match else ""


def shipped_versions() -> tuple[str, ...]:
    """Return the PyTorch versions whose locks come with this package."""
    return tuple(sorted(path.stem.removeprefix("torch-") for path in LOCKS.glob("torch-*.txt")))


def wanted_of(
    name: str,
    torch: str | None,
    python: str | None,
    requirements: Path | None,
    adopt: Path | None,
    prefix: tuple[str, ...],
    variables: Mapping[str, str],
) -> Wanted:
    """Return what is wanted; the arguments are those of ``create``.

    Raises:
        BadRequestError: The request contradicts itself, or names what is not there.
    """
    sources = [each for each in (python, requirements, adopt) if each is not None]
    if len(sources) > 1:
        raise BadRequestError("wanted one of --python, --requirements and --adopt, not several")
    if torch is None and not sources:
        raise BadRequestError(
            f"wanted a PyTorch: keepstep stack create {name} --torch {shipped_versions()[-1]}"
        )
    if torch is not None and not _VERSION.fullmatch(torch):
        raise BadRequestError(f"{torch!r}: wanted a whole PyTorch version, such as 2.14.1")
    if prefix and python is None and adopt is None:
        raise BadRequestError("--prefix wants --python with the interpreter inside the container")
    if prefix and variables:
        raise BadRequestError(
            "the variables of a container belong into its prefix: docker run -e NAME=VALUE ..."
        )
    if strange := sorted(each for each in variables if not known(each)):
        raise BadRequestError(
            f"{', '.join(strange)}: not a variable of PyTorch, NCCL or gloo that keepstep knows; "
            "only these are kept with a stack. Set it where the job is started"
        )
    if requirements is not None and not requirements.is_file():
        raise BadRequestError(f"{requirements}: there is no such file of requirements")
    return Wanted(
        name=name,
        torch=torch or "",
        python=_interpreter(python, adopt, prefix),
        requirements=requirements,
        origin="adopted" if adopt is not None else "python" if python is not None else "created",
        prefix=prefix,
        variables=dict(sorted(variables.items())),
    )


def _interpreter(python: str | None, adopt: Path | None, prefix: tuple[str, ...]) -> str:
    """Return the path of an interpreter that is there, "" when one is to be made."""
    if adopt is not None:
        return str(adopt / "bin" / "python" if prefix else _adopted(adopt))
    if python is None or prefix:
        return python or ""
    found = shutil.which(python)
    if found is None:
        raise BadRequestError(f"{python}: there is no such interpreter; wanted a Python to start")
    return os.path.abspath(found)  # a link stays one: it is what makes a venv of a Python


def _adopted(folder: Path) -> Path:
    python = folder.absolute() / "bin" / "python"
    if not python.exists():
        raise BadRequestError(
            f"{folder}: there is no bin/python in it; wanted the folder of a virtual or conda "
            "environment (for a single interpreter: --python EXE)"
        )
    return python
