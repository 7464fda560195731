"""What the commands of ``keepstep checkpoint`` share: the path, errors, and how numbers read."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

from keepstep.checkpoint.errors import CheckpointError, NoSuchFolderError
from keepstep.checkpoint.readers import Verdicts
from keepstep.cli.machine_errors import told
from keepstep.exit_codes import ExitCode

P = ParamSpec("P")

PathArgument = Annotated[
    str,
    typer.Argument(
        help="Folder of a checkpoint, or an address such as s3://bucket/run/step-100.",
        metavar="PATH",
        show_default=False,
    ),
]

RootArgument = Annotated[
    str,
    typer.Argument(
        help="Folder or address that holds the checkpoints of a run.",
        metavar="ROOT",
        show_default=False,
    ),
]


def answered(command: Callable[P, ExitCode]) -> Callable[P, ExitCode]:
    """Turn what can go wrong with a checkpoint into one message and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: P.args, **options: P.kwargs) -> ExitCode:
        try:
            return command(*arguments, **options)
        except ValueError as error:
            print(f"keepstep: {error}", file=sys.stderr)
            return ExitCode.USAGE
        except NoSuchFolderError as error:
            print(f"keepstep: {error}", file=sys.stderr)
            return ExitCode.USAGE
        except CheckpointError as error:
            print(f"keepstep: {error}", file=sys.stderr)
            return ExitCode.FAIL
        except OSError as error:
            print(f"keepstep: {told(error) or error}", file=sys.stderr)
            return ExitCode.INFRASTRUCTURE

    return guarded


def spans(readers: Verdicts, verdict: bool | None) -> str:
    """Return the versions with a verdict as text: ``2.4 to 2.14`` or ``2.15``."""
    found: list[list[str]] = []
    previous: bool | str | None = ""
    for minor, seen in readers.items():
        if seen is verdict:
            if previous is not verdict:
                found.append([])
            found[-1].append(minor)
        previous = seen
    return ", ".join(span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in found)


def size_text(count: int) -> str:
    """Return a number of bytes as people read it: ``1.5 GB``."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            break
    return f"{size:.3g} {unit}"


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 tensor``, ``2 tensors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
