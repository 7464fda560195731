"""What an interpreter would load a checkpoint with: versions, found without importing torch.

This file is sent to that interpreter as text. It imports the standard library only, keeps to what
Python 3.8 understands, and prints one line of JSON.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from typing import Any

# Packages that take part in a load: file systems, formats, and trainers with readers of their own.
_PACKAGES = (
    *("numpy", "fsspec", "s3fs", "gcsfs", "adlfs", "safetensors", "torchao", "torchrec"),
    *("torchtitan", "megatron-core", "nvidia-resiliency-ext", "transformers", "accelerate"),
    *("lightning", "pytorch-lightning", "mosaicml"),
)


def fingerprint() -> dict[str, Any]:
    """Return the versions that decide how a checkpoint is loaded; ``torch`` is None without one."""
    return {
        "executable": sys.executable,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": "-".join((sys.platform, platform.machine(), *platform.libc_ver())),
        "torch": _torch(),
        "packages": {name: version for name in _PACKAGES for version in _versions(name)},
    }


def _torch() -> dict[str, Any] | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
        said = _constants(ast.parse(file.read()))
    return {
        "version": said.get("__version__"),
        "git": said.get("git_version"),
        "cuda": said.get("cuda"),
        "hip": said.get("hip"),
    }


def _constants(tree: ast.Module) -> dict[str, Any]:
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = value.value
    return found


def _versions(name: str) -> list[str]:
    try:
        return [importlib.metadata.version(name)]
    except importlib.metadata.PackageNotFoundError:
        return []


if __name__ == "__main__":
    print(json.dumps(fingerprint()))
