"""The `keepstep` command: finds the command that was asked for and turns its end into an exit code.

A command `name` is the function `name` in `keepstep.cli.<name>`. It is imported only when it is
asked for, so that `keepstep --version` costs nothing but this file. It returns an `ExitCode`, or
nothing for a pass.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from keepstep._version import __version__
from keepstep.cli.machine_errors import told
from keepstep.exit_codes import ExitCode

_COMMAND = "keepstep.cli."  # where the files of commands lie

# Each command's context settings, in the order in which help lists them.
_COMMANDS: dict[str, dict[str, Any]] = {
    # What follows the script belongs to the script, also when it looks like an option.
    "run": {"allow_interspersed_args": False},
    "probe": {"allow_interspersed_args": False},
    "explain": {},
    "check": {},
    "rehearse": {},
    "check-recorder": {},
    "checkpoint": {},
    "stack": {},
    "receipt": {},
}

# The commands of a group: `keepstep checkpoint test-load` is the function `test_load` in
# `keepstep.cli.checkpoint_test_load`.
_GROUPS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "checkpoint": (
        "Which PyTorch can read a checkpoint, and how to go back to an older one.",
        {
            "inspect": {},
            "readers": {},
            "downgrade": {},
            "verify": {},
            "test-load": {},
            "status": {},
            "protect": {},
            "release": {},
            "finalize": {},
            "prune": {},
            "shim": {},
        },
    ),
    "stack": (
        "Named environments in which jobs run, and what they really contain.",
        {"create": {}, "list": {}, "show": {}, "diff": {}, "remove": {}},
    ),
    "receipt": (
        "The signed records of what ran and what was seen.",
        {"show": {}, "verify": {}, "diff": {}, "key": {}},
    ),
}


def _on_demand(prefix: str, commands: dict[str, dict[str, Any]]) -> type[TyperGroup]:
    """Return a group that imports a command's file when the command is first looked up."""

    class CommandsOnDemand(TyperGroup):
        # The context is Any because typer keeps the type of its base class to itself.
        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
            if cmd_name not in commands:
                return None
            if prefix == _COMMAND and cmd_name in _GROUPS:
                return _load_group(cmd_name)
            return _load(prefix, cmd_name, commands[cmd_name])

    return CommandsOnDemand


def _load(prefix: str, name: str, settings: dict[str, Any]) -> TyperCommand:
    python_name = name.replace("-", "_")
    function = getattr(importlib.import_module(f"{prefix}{python_name}"), python_name)
    single = _plain_app()
    single.command(name=name, context_settings=settings)(function)
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand), "an app with one command and no callback is a command"
    return command


def _load_group(name: str) -> TyperGroup:
    says, commands = _GROUPS[name]
    several = _plain_app()
    several.callback(
        cls=_on_demand(f"{_COMMAND}{name}_", commands),
        help=says,
        invoke_without_command=True,
    )(_help_without_command)
    group = typer.main.get_command(several)
    assert isinstance(group, TyperGroup), "an app with a callback is a group"
    return group


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)


def _plain_app() -> typer.Typer:
    """Return an app that prints plain text: no boxes, no decorated tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


app = _plain_app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keepstep {__version__}")
        raise typer.Exit


@app.callback(cls=_on_demand(_COMMAND, _COMMANDS), invoke_without_command=True)
def keepstep(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep every rank in step: through a bad GPU, a hang, or a bad release."""
    _help_without_command(context)


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
    _stand_in_for_closed_streams()
    try:
        code = execute(sys.argv[1:])
        sys.stdout.flush()  # what cannot be written is told like any other error
    except BrokenPipeError:
        raise
    except OSError as error:
        why = told(error)
        if why is None:
            _admit()
        else:
            print(f"keepstep: {why}", file=sys.stderr)
        code = ExitCode.INFRASTRUCTURE
    except Exception:  # Python would end with 1, which is the verdict "fail"
        _admit()
        code = ExitCode.INFRASTRUCTURE
    sys.exit(code)


def _stand_in_for_closed_streams() -> None:
    """Let a command whose output nobody wants (``>&-``) do its work, and its children theirs."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w"))


def _admit() -> None:
    """Tell of an error that nobody has foreseen."""
    traceback.print_exc()
    print(
        "keepstep: this is a mistake in keepstep and says nothing about your job; please report it "
        "with the lines above",
        file=sys.stderr,
    )
