"""Says what an environment holds. Runs in its interpreter, without importing torch."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import mmap
import os
import pathlib
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

# Their libraries belong to torch's wheel; they need no trial.
_TORCHS_OWN = {"torch", "nvidia", "triton", "functorch", "torchgen"}
_LINKED = (b"libtorch.so", b"libtorch_cpu.so", b"libtorch_python.so", b"libc10.so")
_MOST_ENTRIES = 20_000  # of the job's own folder
_CAST = b"_ZTIN4c10d16ProcessGroupNCCLE"  # type information that a dynamic_cast asks for


def _torch() -> dict[str, str | None] | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
    found = {}
    for name in ("__version__", "cuda", "hip"):
        match = re.search(rf"^{name}\b[^=]*= ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        found[name.strip("_")] = match[1] if match else None
    return found


def _folders() -> list[str]:
    paths = sysconfig.get_paths()
    found = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


def _extensions(folder: str, siblings: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    for above, names, files in os.walk(folder):
        if above == folder:
            names[:] = [name for name in names if name not in _TORCHS_OWN]
        for name in sorted(files):
            if name.endswith(".so"):
                path = os.path.join(above, name)
                found = _extension(path, os.path.relpath(path, folder), siblings)
                if found:
                    yield found


def _of_the_job(folder: str) -> Iterator[dict[str, Any]]:
    """Yield extensions that were built beside the script; loaded by path, not by name."""
    entries = 0
    for above, names, files in os.walk(folder):
        entries += len(names) + len(files)
        if entries > _MOST_ENTRIES:
            return
        names[:] = [
            name
            for name in names
            if not name.startswith(".")
            and name not in ("site-packages", "dist-packages", "node_modules")
            and not os.path.exists(os.path.join(above, name, "pyvenv.cfg"))
        ]
        for name in sorted(files):
            path = os.path.join(above, name)
            found = _extension(path, name, {}) if name.endswith(".so") else None
            if found:
                yield {**found, "shown": path, "module": ""}


def _extension(path: str, relative: str, siblings: dict[str, list[str]]) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"\x7fELF" or all(data.find(name) < 0 for name in _LINKED):
                return None
            name = _dotted(relative)
            last = name.rpartition(".")[2]
            top = relative.partition(os.sep)[0].partition(".")[0]
            return {
                "path": path,
                "shown": relative,
                "module": name if data.find(f"PyInit_{last}".encode()) >= 0 else "",
                "casts": data.find(_CAST) >= 0,
                "package": top,
                "siblings": siblings.get(top, [top]),
            }
    except (OSError, ValueError):
        return None


def _dotted(relative: str) -> str:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if relative.endswith(suffix):
            return relative[: -len(suffix)].replace(os.sep, ".")
    return ""


def _siblings() -> dict[str, list[str]]:
    """Return, by what is imported, everything that its distribution lets one import."""
    of_distribution: dict[str, list[str]] = {}
    by_import = importlib.metadata.packages_distributions()
    for top, names in by_import.items():
        for name in names:
            of_distribution.setdefault(name, []).append(top)
    return {
        top: sorted({each for name in names for each in of_distribution[name]})
        for top, names in by_import.items()
    }


def _nccls() -> dict[str, str]:
    found = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name.startswith("nvidia-nccl"):
            found[name] = each.version
    return found


_request = json.loads(sys.argv[1])
_beside = _siblings()
_found = [each for folder in _folders() for each in _extensions(folder, _beside)]
_found += [each for folder in _request["folders"] for each in _of_the_job(folder)]
print(
    "keepstep-answer "
    + json.dumps(
        {
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": _torch(),
            "nccls": _nccls(),
            "extensions": list({each["path"]: each for each in _found}.values()),
        }
    )
)
