"""Says which files the Python of a stack accepts. Nothing of them is executed."""

from __future__ import annotations

import json
import sys
import tokenize


def _accepts(path: str) -> bool:
    try:
        with tokenize.open(path) as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


_request = json.loads(sys.argv[1])
_answer = {
    "python": ".".join(map(str, sys.version_info[:3])),
    "accepted": [_accepts(path) for path in _request["files"]],
}
print("keepstep-answer " + json.dumps(_answer))
