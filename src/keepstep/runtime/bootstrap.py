"""First code of a worker process: tie it to its agent, then run the script as ``__main__``."""

from __future__ import annotations

import os
import runpy
import sys

from keepstep.runtime.store import die_with_parent


def main() -> None:
    """Run ``argv[2:]`` as a script; ``argv[1]`` is the agent's process id."""
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the agent died before the kernel knew that we depend on it
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
