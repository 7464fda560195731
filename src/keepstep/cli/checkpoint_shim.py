"""``keepstep checkpoint shim``: a file that lets an old image load a new checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepstep.checkpoint.errors import CheckpointError
from keepstep.cli.checkpoint_answer import answered
from keepstep.exit_codes import ExitCode

_SOURCE = Path(__file__).parent.parent / "checkpoint" / "shim.py"
_NAME = "sitecustomize.py"  # what Python runs when it starts


@answered
def shim(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write sitecustomize.py into; without it, the file is printed.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
) -> ExitCode:
    """Write a file that lets PyTorch 2.4 to 2.14 load checkpoints of 2.15 as they are."""
    text = _SOURCE.read_text()
    if out is None:
        print(text, end="")
        return ExitCode.PASS
    path = out / _NAME
    if path.exists() and path.read_text() != text:
        raise CheckpointError(f"{path}: it exists and is another one; wanted: a new folder")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path}: written")
    print(f"use it: PYTHONPATH={out.resolve()} in the environment of every rank that loads")
    print("better, where you can: keepstep checkpoint downgrade PATH --for 2.14")
    return ExitCode.PASS
