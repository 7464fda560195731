"""First and last code of a worker process: tie it to its agent, run the script, leave."""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import threading
from typing import NoReturn

from keepstep.parent import die_with_parent

_BEFORE_THE_START = "Call reconfigure()"  # torch 2.15.0, of a group that has no members yet
_HINT = (
    "keepstep: a process has no peers before Job.train begins, so nothing can be exchanged there. "
    "Wrap a model with `network = job.data_parallel(model)`, not with DistributedDataParallel, and "
    "put other communication into the step or into a function under @job.on_generation"
)


def main() -> NoReturn:
    """Run ``argv[2:]`` as a script; ``argv[1]`` is the agent's process id."""
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the agent died before the kernel knew that we depend on it
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    _leave(_run_script(sys.argv[0]))


def _run_script(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leaving:
        return _code_of(leaving)
    except BaseException as error:  # what the interpreter itself would do with it
        sys.excepthook(type(error), error, error.__traceback__)
        if _BEFORE_THE_START in str(error):
            print(_HINT, file=sys.stderr)
        return 1
    return 0


def _code_of(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """End the process as an interpreter does, up to the point where memory is torn down.

    Threads of torch and of this package may be inside native code then. The interpreter unwinds
    them through C++ frames that do not allow it, and a complete job ends with SIGABRT now and then.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
