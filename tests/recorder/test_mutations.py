"""A few thousand damaged dumps; ``python -m tests.fuzz_recorder`` tries a million."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_damaged_dumps_are_read_or_refused() -> None:
    # In a process of its own: it limits its memory and watches what is executed.
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_recorder", "--inputs", "3000", "--seed", "1"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("3000 inputs, no fault")
    for end in ("read", "truncated", "malformed", "hostile"):
        assert f"'{end}'" in last
