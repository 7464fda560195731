"""The environment that torchft runs in: made on first use, outside the checkout.

torchft brings packages that nothing else here needs, so it gets an environment of its own. What
both environments share is hard links into uv's cache: it takes seconds and little space.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools import environment as setup

LOCK = setup.ROOT / "requirements" / "bench.txt"


def ensure_environment() -> Path:
    """Return the directory of torchft's environment, made when it is missing.

    Raises:
        SetupError: it cannot be made; says what would mend that.
    """
    home = setup.cache_directory(os.environ)
    key = setup.environment_key(setup.ROOT, LOCK.read_bytes(), setup.python_tag())
    environment = home / "envs" / key
    if setup.read_stamp(environment) is None:
        with setup.only_one_setup(home):
            if setup.read_stamp(environment) is None:  # another set-up may just have made it
                _build(environment, setup.ensure_uv(home))
    return environment


def _build(environment: Path, uv: Path) -> None:
    setup.check_space(setup.cache_directory(os.environ), first_time=False)
    setup.say(f"creating torchft's environment {environment}")
    setup.remove(environment)
    setup.run(uv, "venv", "--quiet", "--python", sys.executable, environment)
    setup.install(environment, uv, "--compile-bytecode", "--require-hashes", "-r", LOCK)
    (environment / setup.STAMP).write_text("torchft")
