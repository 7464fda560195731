"""``keepstep stack create``: make a named environment, or name one that is there."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.stack_answer import JsonOption, NameArgument, answered, disk_text
from keepstep.exit_codes import ExitCode
from keepstep.stack import create as creation
from keepstep.stack.errors import BadRequestError
from keepstep.stack.named import Stack, to_json


@answered
def create(
    name: NameArgument,
    torch: Annotated[
        str | None,
        typer.Option(help="PyTorch of the stack, such as 2.14.1.", metavar="VERSION"),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Use this interpreter instead of a new environment.", metavar="EXE"),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(help="Install what this file says, instead of keepstep's own lock."),
    ] = None,
    adopt: Annotated[
        Path | None,
        typer.Option(help="Use the virtual or conda environment in this folder.", metavar="PATH"),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(
            help="What starts the container in which --python is, such as 'docker run --rm IMAGE'."
        ),
    ] = "",
    variable: Annotated[
        list[str] | None,
        typer.Option(help="Variable that jobs of this stack get.", metavar="NAME=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Make a named stack; one that is there already and has not changed costs nothing."""
    begun = time.monotonic()
    stack = creation.create(
        name,
        torch=torch,
        python=python,
        requirements=requirements,
        adopt=adopt,
        prefix=tuple(shlex.split(prefix)),
        variables=_variables(variable or []),
        say=_say if sys.stderr.isatty() or not as_json else _quiet,
    )
    seconds = time.monotonic() - begun
    if as_json:
        print(json.dumps({**to_json(stack), "seconds": round(seconds, 3)}))
    else:
        print("\n".join(_lines(stack, seconds)))
    return ExitCode.PASS


def _variables(assignments: list[str]) -> dict[str, str]:
    found = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign:
            raise BadRequestError(f"--variable {text}: wanted NAME=VALUE")
        found[name] = value
    return found


def _lines(stack: Stack, seconds: float) -> list[str]:
    return [
        f"stack {stack.name}: PyTorch {stack.torch}, ready after {seconds:.1f} s",
        f"  interpreter: {shlex.join(stack.command())}",
        f"  disk: {disk_text(stack)}",
    ]


def _say(text: str) -> None:
    print(f"keepstep: {text}", file=sys.stderr, flush=True)


def _quiet(_: str) -> None:
    return
