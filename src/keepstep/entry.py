"""What the installed command begins with: an interrupt while it loads is no error of keepstep."""

from __future__ import annotations

import sys

from keepstep.exit_codes import ExitCode


def main() -> None:
    """Load the command and run it."""
    try:
        from keepstep.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    command()
