"""``keepstep stack remove``: remove a stack."""

from __future__ import annotations

from keepstep.cli.stack_answer import NameArgument, answered
from keepstep.exit_codes import ExitCode
from keepstep.stack import create as creation


@answered
def remove(name: NameArgument) -> ExitCode:
    """Remove a stack, also a half-made one; an interpreter that was only named stays."""
    creation.remove(name)
    print(f"removed the stack {name}")
    return ExitCode.PASS
