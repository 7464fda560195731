"""Imports compiled extensions, each in a fork of its own. Runs in the interpreter of a stack."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from typing import Any


def _trial(each: dict[str, Any], patience_s: float) -> str:
    """Return what went wrong when one was imported; "" for nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _import(each, writer)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], patience_s)
        if not ready:
            os.kill(child, signal.SIGKILL)
        said = b""
        while chunk := os.read(reader, 1 << 16):
            said += chunk
    finally:
        os.close(reader)
    _, status = os.waitpid(child, 0)
    if not ready:
        return f"no end within {patience_s:g} s"
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    return said.decode(errors="replace")


def _import(each: dict[str, Any], writer: int) -> None:
    error = ""
    try:
        if each["module"]:
            importlib.import_module(each["module"])
        else:
            ctypes.CDLL(each["path"])
    except BaseException as problem:  # an extension may raise SystemExit
        error = f"{type(problem).__name__}: {problem}"
    os.write(writer, error.encode(errors="replace")[:4096])
    os._exit(0)


_request = json.loads(sys.argv[1])
_problem = ""
try:
    import torch  # noqa: F401  # its libraries must be there first, as they are in a job
except BaseException as error:
    _problem = f"import torch: {type(error).__name__}: {error}"
_errors = [_problem or _trial(each, _request["patience_s"]) for each in _request["extensions"]]
print("keepstep-answer " + json.dumps({"errors": _errors}))
