"""The fingerprint's code as one argument of a command line, for interpreters behind a prefix.

In a container the folders of this machine are not there; what stands on the command line is.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

_MODULES = ("variable_table", "variables", "libraries", "machine", "groups", "fingerprint")

_PROGRAM = """
import base64, json, sys, types, zlib
for name, text in json.loads(zlib.decompress(base64.b64decode({packed!r}))).items():
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(text, name, "exec"), vars(module))
sys.exit(module.main(sys.argv[1:]))
"""


def fingerprint_program() -> str:
    """Return a program for ``python -c`` that does what ``keepstep.stack.fingerprint`` does."""
    texts = {"keepstep": "", "keepstep.stack": ""}
    for name in _MODULES:
        texts[f"keepstep.stack.{name}"] = Path(__file__).with_name(f"{name}.py").read_text()
    packed = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()
    return _PROGRAM.format(packed=packed)
