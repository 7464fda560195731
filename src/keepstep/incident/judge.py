"""Read an incident, write its verdict beside it: ``python -m keepstep.incident.judge [FOLDER]``.

A process of its own, so that reading dumps never keeps an agent from watching its ranks. Without an
argument it loads its program and waits until standard input has named the folder and ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from keepstep.diagnosis.diagnose import diagnose
from keepstep.incident.advice import advised
from keepstep.incident.answer import to_json, to_text
from keepstep.incident.gather import gather
from keepstep.whole import write_whole


def main() -> int:
    """Judge one folder; the verdict goes to verdict.json, verdict.txt and standard output."""
    told = sys.argv[1] if len(sys.argv) > 1 else os.fsdecode(sys.stdin.buffer.read())
    if not told:
        return 0  # nothing happened
    folder = Path(told)
    (gathered,) = gather(folder)
    verdict = advised(gathered, diagnose(gathered.evidence))
    body = json.dumps(to_json(gathered, verdict), indent=2)
    write_whole(folder / "verdict.json", [body, "\n"])
    write_whole(folder / "verdict.txt", [to_text(gathered, verdict)])
    print(body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
