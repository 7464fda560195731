"""An environment with an older PyTorch: the stack 2.14.1, made when it is missing, about 5 GB."""

from __future__ import annotations

from pathlib import Path

from keepstep.stack.create import create

VERSION = "2.14.1"


def ensure_old_python() -> Path:
    """Return the interpreter of that stack."""
    return Path(create(VERSION, torch=VERSION).python)


if __name__ == "__main__":
    print(ensure_old_python())
