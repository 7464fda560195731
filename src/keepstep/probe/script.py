"""Runs a script as ``python script.py`` does, as far as the script can tell."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import sys
from types import ModuleType, TracebackType

_OURS = ("keepstep.probe", "keepstep.stack")


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
    except BaseException:
        # The interpreter prints it at the very end, with the hook that is set by then.
        hook = sys.excepthook

        def without_probe(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            _clean(value)
            hook(kind, value, value.__traceback__)

        sys.excepthook = without_probe
        raise


def _clean(error: BaseException) -> None:
    """Take the probe's frames out of an exception and of those that led to it."""
    error.__traceback__ = _from_the_script_on(error.__traceback__)
    left, seen = [error], {id(error)}
    while left:
        each = left.pop()
        each.__traceback__ = _without_probe(each.__traceback__)
        for before in (each.__cause__, each.__context__):
            if before is not None and id(before) not in seen:
                seen.add(id(before))
                left.append(before)


def _from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the script; a syntax error has none."""
    main = sys.modules["__main__"].__dict__
    while trace is not None and trace.tb_frame.f_globals is not main:
        trace = trace.tb_next
    return trace


def _without_probe(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the functions that stand before those of torch."""
    kept = []
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not name.startswith(_OURS):
            kept.append(trace)
        trace = trace.tb_next
    whole: TracebackType | None = None
    for each in reversed(kept):
        whole = TracebackType(whole, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return whole
