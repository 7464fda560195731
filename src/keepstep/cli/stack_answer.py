"""What the commands of ``keepstep stack`` share: the name, errors, and how differences read."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, ParamSpec

import typer

from keepstep.cli.checkpoint_answer import size_text
from keepstep.exit_codes import ExitCode
from keepstep.stack.errors import StackError
from keepstep.stack.material import Difference
from keepstep.stack.named import Stack

P = ParamSpec("P")

NameArgument = Annotated[
    str, typer.Argument(help="Name of the stack.", metavar="NAME", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]

ORIGINS = {"created": "made", "python": "named", "adopted": "adopted"}  # what was done, and when

_SHOWN = 12


def answered(command: Callable[P, ExitCode]) -> Callable[P, ExitCode]:
    """Turn what can go wrong with a stack into one message and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: P.args, **options: P.kwargs) -> ExitCode:
        try:
            return command(*arguments, **options)
        except ValueError as error:
            print(f"keepstep: {error}", file=sys.stderr)
            return ExitCode.USAGE
        except (StackError, OSError) as error:
            print(f"keepstep: {error}", file=sys.stderr)
            return ExitCode.INFRASTRUCTURE

    return guarded


def difference_lines(found: Sequence[Difference], indent: str = "  ") -> list[str]:
    """Return differences as lines of a table; build ids are shortened, --json has all."""
    width = max((len(each.field) for each in found), default=0)
    return [
        f"{indent}{each.field:<{width}}  {_short(each.first)} -> {_short(each.second)}"
        for each in found
    ]


def disk_text(stack: Stack) -> str:
    """Return what a stack takes on the disk."""
    if not stack.bytes:
        return "nothing: it was there before"
    return (
        f"{size_text(stack.bytes)}, of which {size_text(stack.own_bytes)} are its own (the rest is "
        "shared with the installer's cache)"
    )


def drift_lines(found: Sequence[Difference]) -> list[str]:
    """Return what has changed in a stack since it was made, and what to do about it."""
    lines = ["changed since it was made:", *difference_lines(found[:_SHOWN], indent="    ")]
    if len(found) > _SHOWN:
        lines.append(f"    ... and {len(found) - _SHOWN} more (all with --json)")
    return lines


def _short(text: str) -> str:
    if len(text) == 40 and all(letter in "0123456789abcdef" for letter in text):
        return text[:12]
    return text or "(none)"
