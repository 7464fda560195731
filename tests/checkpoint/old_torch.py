"""An environment with an older PyTorch, made once from requirements/stack-2.14.txt.

It lies among this checkout's environments, so ``make clean-env`` removes it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools import environment as tool

LOCK = tool.ROOT / "requirements" / "stack-2.14.txt"


def ensure_old_python() -> Path:
    """Return the interpreter of the environment, which is made when it is missing: about 5 GB."""
    home = tool.cache_directory(os.environ)
    folder = home / "envs" / tool.environment_key(tool.ROOT, LOCK.read_bytes(), tool.python_tag())
    uv = tool.locked_uv(home)
    # A lock of its own: the download takes minutes, and has nothing to do with other set-ups.
    with tool.only_one_setup(home / "old-torch"):
        if tool.read_stamp(folder) is None:
            _build(folder, uv, home)
    return folder / "bin" / "python"


def _build(folder: Path, uv: Path, home: Path) -> None:
    tool.check_space(home, first_time=True)
    tool.remove(folder)
    tool.run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    tool.install(folder, uv, "--compile-bytecode", "--require-hashes", "-r", LOCK)
    (folder / tool.STAMP).write_text("complete")


if __name__ == "__main__":
    print(ensure_old_python())
