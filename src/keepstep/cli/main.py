"""The `keepstep` command: finds the command that was asked for and turns its end into an exit code.

A command `name` is the function `name` in `keepstep.cli.<name>`. It is imported only when it is
asked for, so that `keepstep --version` costs nothing but this file. It returns an `ExitCode`, or
nothing for a pass.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from keepstep._version import __version__
from keepstep.exit_codes import ExitCode

# Each command's context settings, in the order in which help lists them.
_COMMANDS: dict[str, dict[str, Any]] = {
    # What follows the script belongs to the script, also when it looks like an option.
    "run": {"allow_interspersed_args": False},
}


class _CommandsOnDemand(TyperGroup):
    """Imports a command's file when the command is first looked up."""

    # The context is Any because typer keeps the type of its base class to itself.
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        return _load(cmd_name) if cmd_name in _COMMANDS else None


def _load(name: str) -> TyperCommand:
    function = getattr(importlib.import_module(f"keepstep.cli.{name}"), name)
    single = _plain_app()
    single.command(name=name, context_settings=_COMMANDS[name])(function)
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand), "an app with one command and no callback is a command"
    return command


def _plain_app() -> typer.Typer:
    """Return an app that prints plain text: no boxes, no decorated tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


app = _plain_app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keepstep {__version__}")
        raise typer.Exit


@app.callback(cls=_CommandsOnDemand, invoke_without_command=True)
def keepstep(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep every rank in step: through a bad GPU, a hang, or a bad release."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)


def execute(arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` (without the program's name) ask for.

    Returns the exit code.
    """
    try:
        result = app(arguments, prog_name="keepstep", standalone_mode=False)
    except typer.TyperException as error:
        print(_usage_message(error), file=sys.stderr)
        return ExitCode.USAGE
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return ExitCode.PASS if result is None else int(result)


def _usage_message(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)  # only errors about the command line itself have one
    asked = context.command_path if context is not None else "keepstep"
    return f"{asked}: {error.format_message()}\nSee: {asked} --help"


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(execute(sys.argv[1:]))
