"""``python -m keepstep.probe --record DIR script.py [args]``: run a script and see what it does.

The exit code is the script's.
"""

from __future__ import annotations

import os
import sys

from keepstep.probe import script
from keepstep.probe.options import OptionsError, check_ranks, parse
from keepstep.probe.plants import PlantError
from keepstep.probe.watch import INTERRUPTED, Watch

_USAGE = 2


def main() -> None:
    """Run the script of the command line."""
    try:
        options = parse(sys.argv[1:])
        check_ranks(os.environ)
        watch = Watch(options)
        becomes, source = script.become(options.script, options.arguments)
    except (OptionsError, PlantError) as error:
        sys.exit(_refused(str(error)))
    except OSError as error:
        sys.exit(_refused(f"{options.script}: {error.strerror}; wanted a Python script"))
    watch.begin()
    try:
        script.execute(becomes, source)
    except SystemExit as error:
        watch.ended("exit", exit_code(error.code))
        raise
    except KeyboardInterrupt as error:
        watch.ended("exception", INTERRUPTED, error)
        raise
    except BaseException as error:
        watch.ended("exception", 1, error)
        raise
    watch.ended("complete", 0)


def exit_code(value: object) -> int:
    """Return the exit code that Python makes of ``SystemExit``'s value."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1


def _refused(problem: str) -> int:
    sys.stderr.write(f"keepstep.probe: {problem}\n")
    return _USAGE


if __name__ == "__main__":
    main()
