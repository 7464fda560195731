"""Asks an interpreter: runs a file of this folder in it and reads the one line that it answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The interpreter need not have keepstep; the first entry of its path is the working directory,
# whose files have no business here.
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); exec(compile({!r}, {!r}, 'exec'))"
_MARK = "keepstep-answer "  # what packages print while they are imported is not the answer


class NoAnswerError(Exception):
    """The interpreter did not answer; the text says why."""


def ask(
    python: Sequence[str], program: str, request: Mapping[str, Any], patience_s: float
) -> dict[str, Any]:
    """Return the answer of a program of this folder.

    Args:
        python: The command of an interpreter, Python 3.10 or newer.
        program: The name of the file.
        request: What it is given.
        patience_s: After which it is killed.

    Raises:
        NoAnswerError: It does not start, does not end in time, or ends without an answer.
    """
    text = Path(__file__).with_name(program).read_text()
    command = [*python, "-c", _PROGRAM.format(text, program), json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            # No GPU is touched: what is asked is the same without one.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
    except OSError as error:
        raise NoAnswerError(f"{python[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"no answer within {patience_s:g} s") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    if done.returncode < 0:
        raise NoAnswerError(f"ended by signal {-done.returncode}")
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise NoAnswerError(last.strip())
