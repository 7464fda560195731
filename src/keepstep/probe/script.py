"""Runs a script as ``python script.py`` does, as far as the script can tell."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import sys
from types import ModuleType, TracebackType


def become(script: str, arguments: list[str]) -> tuple[ModuleType, bytes]:
    """Make this process look as if Python had been started with the script.

    Returns:
        The new ``__main__`` and its source.

    Raises:
        OSError: The script cannot be read.
    """
    path = os.path.abspath(script)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    source = loader.get_data(path)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __builtins__=builtins, __spec__=None, __loader__=loader, __cached__=None
    )
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # Python 3.10 has no such flag
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    return main, source


def execute(main: ModuleType, source: bytes) -> None:
    """Run the source. What it raises goes on to the interpreter, without the probe's frames."""
    try:
        # Not with the flags of this module, whose annotations are not evaluated.
        exec(compile(source, str(main.__file__), "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # The interpreter prints it at the very end, with the hook that is set by then.
        hook = sys.excepthook

        def from_the_script_on(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            own = _without_probe(trace)
            hook(kind, value.with_traceback(own), own)

        sys.excepthook = from_the_script_on
        error.__traceback__ = _without_probe(error.__traceback__)
        raise


def _without_probe(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the script; a syntax error has none."""
    main = sys.modules["__main__"].__dict__
    found = trace
    while found is not None and found.tb_frame.f_globals is not main:
        found = found.tb_next
    return found
