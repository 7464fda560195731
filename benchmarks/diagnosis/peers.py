"""Packages that only the other analysers need, in a directory of their own outside the checkout.

NVRx's analyser is plain Python, but the newest wheel is made for Python 3.12 and a newer C library
than some machines have, because of compiled parts that the analyser does not use. So the files are
laid beside each other for PYTHONPATH, without what they require; what the analyser imports is
there. ``tabulate`` is what torchfrtrace prints with where it is installed, and fails without in
one place.
"""

from __future__ import annotations

import os
from pathlib import Path

from tools import environment as setup

LOCK = setup.ROOT / "requirements" / "bench-diagnosis.txt"


def ensure_peers() -> Path:
    """Return the directory, filled when it is not yet.

    Raises:
        SetupError: it cannot be filled; says what would mend that.
    """
    home = setup.cache_directory(os.environ)
    key = setup.environment_key(setup.ROOT, LOCK.read_bytes(), setup.python_tag())
    directory = home / "peers" / key
    if not directory.exists():
        with setup.only_one_setup(home):
            if not directory.exists():  # another set-up may just have made it
                _fill(directory, setup.ensure_uv(home))
    return directory


def _fill(directory: Path, uv: Path) -> None:
    setup.say(f"installing other analysers into {directory}")
    partial = directory.with_name(f"{directory.name}.partial")
    setup.remove(partial)
    place = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39")
    options = ("--quiet", "--no-deps", "--require-hashes", *place, "--target", partial)
    setup.run(uv, "pip", "install", *options, "-r", LOCK)
    partial.rename(directory)
