"""What a stack is, asked of its own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from keepstep.stack.carried import fingerprint_program
from keepstep.stack.errors import StackError
from keepstep.stack.exposed import exposed
from keepstep.stack.named import Stack

_PATIENCE_S = 120  # for PyTorch to load from a cold disk, or in a container that has to start
_MODULE = "keepstep.stack.fingerprint"


def ask_fingerprint(stack: Stack, *, without_torch: bool = False) -> dict[str, Any]:
    """Return the fingerprint of a stack's interpreter, started for this.

    Args:
        stack: The stack.
        without_torch: Do not load PyTorch: interpreter and packages only, in a tenth of a second.

    Raises:
        StackError: The interpreter does not start, or ends without an answer.
    """
    start = ["-c", fingerprint_program()] if stack.prefix else ["-m", _MODULE]
    command = stack.command(*start, *(["--without-torch"] if without_torch else []))
    shown = " ".join(stack.command())
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            env=stack_variables(stack),
            cwd=stack.folder,  # whose files nobody takes for modules
        )
    except OSError as error:
        raise StackError(f"{shown}: {error.strerror}: wanted a Python that starts") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"{shown}: no answer within {_PATIENCE_S} s") from None
    for line in reversed(finished.stdout.splitlines()):
        found = _facts(line)
        if "python" in found:
            return found
    said = finished.stderr.strip().splitlines()[-1:] or ["nothing"]
    raise StackError(
        f"{shown}: it ended with status {finished.returncode} and no answer, and said: {said[0]}; "
        "wanted Python 3.10 or newer that can import keepstep"
    )


def stack_variables(stack: Stack) -> dict[str, str]:
    """Return the environment in which a stack's interpreter runs and finds keepstep's probes."""
    # Nothing of this interpreter's own paths: they hold another PyTorch.
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return {**inherited, **stack.variables, "PYTHONPATH": str(exposed())}


def _facts(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:  # what a package printed while it was imported
        return {}
    return found if isinstance(found, dict) else {}
