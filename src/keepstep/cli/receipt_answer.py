"""What the commands of ``keepstep receipt`` share: their arguments, errors, and how they print."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from keepstep.exit_codes import ExitCode
from keepstep.incident.answer import printable
from keepstep.receipt.errors import KeyFileError, ReceiptError

P = ParamSpec("P")

PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Receipts, folders of receipts, or folders of rehearsals.",
        metavar="PATH...",
        show_default=False,
    ),
]

KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key",
        help="Trust the public key in this file and no other.",
        metavar="FILE",
        show_default=False,
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]


def answered(command: Callable[P, ExitCode]) -> Callable[P, ExitCode]:
    """Turn what can go wrong with files and keys into one message and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: P.args, **options: P.kwargs) -> ExitCode:
        try:
            return command(*arguments, **options)
        except (ValueError, FileNotFoundError, KeyFileError) as error:
            code, text = ExitCode.USAGE, str(error)
        except ReceiptError as error:
            code, text = ExitCode.FAIL, str(error)
        except OSError as error:
            code, text = ExitCode.INFRASTRUCTURE, str(error)
        print(f"keepstep: {printable(text)}", file=sys.stderr)
        return code

    return guarded


def time_of(text: str | None) -> datetime:
    """Return the time that an option names, now without one.

    Raises:
        ValueError: It is no time.
    """
    if text is None:
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--at {text}: wanted a date or a time such as 2026-12-24 or 2026-12-24T09:00:00Z"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def say(lines: Iterable[str]) -> None:
    """Print lines; what came from a file cannot steer the terminal."""
    print("\n".join(printable(line) for line in lines))


def many(count: int, noun: str = "receipt", plural: str = "") -> str:
    """Return a number with its noun: ``1 receipt``, ``2 receipts``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
