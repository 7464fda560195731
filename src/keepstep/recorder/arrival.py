"""What lies where dumps are due: the facts that ``delivery.check_delivery`` judges."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from keepstep.recorder.delivery import Arrived
from keepstep.recorder.model import Finding


def observe(
    paths: Iterable[str],
    findings: Iterable[Finding] = (),
    *,
    apart_s: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Arrived]:
    """Look at each path twice, ``apart_s`` seconds apart; ``findings`` are those of reading them.

    Paths where nothing was the first time are left out.
    """
    codes: dict[str, list[str]] = {}
    for finding in findings:
        codes.setdefault(finding.path, []).append(finding.code)
    first = {path: status for path in paths if (status := _status(path)) is not None}
    sleep(apart_s)
    arrived = {}
    for path, status in first.items():
        later = _status(path)
        regular = stat.S_ISREG(status.st_mode)
        arrived[path] = Arrived(
            size=status.st_size,
            modified_s=status.st_mtime,
            later_size=None if later is None else later.st_size,
            later_modified_s=None if later is None else later.st_mtime,
            readable=os.access(path, os.R_OK),
            findings=(*codes.get(path, ()), *(() if regular else ("not-a-file",))),
        )
    return arrived


def _status(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError:
        return None
