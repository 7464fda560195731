"""What a process runs on, read from the running process itself.

Standard library and torch only, Python 3.10, PyTorch 2.11 to 2.15; CUDA is not initialised. It
never raises: what cannot be read is None, and ``reasons`` says why.

``python -m keepstep.stack.fingerprint`` imports torch and prints it as JSON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import Any

from keepstep.stack import groups as process_groups
from keepstep.stack.libraries import duplicates, loaded_libraries, nccl_version
from keepstep.stack.machine import NoDriverError, driver_and_gpus, limits
from keepstep.stack.variables import allowed, status_of, version_of

FORMAT = 1

_FORMS = {5: "C", 6: "D"}  # of checkpoint metadata, by the fields of TensorProperties


def fingerprint() -> dict[str, Any]:
    """Return what this process runs on; torch is described if it is imported."""
    reasons: dict[str, str] = {}

    def read(name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:  # whatever a foreign environment comes up with
            plain = isinstance(error, NoDriverError | LookupError)
            reasons[name] = str(error) if plain else f"{type(error).__name__}: {error}"
            return None

    torch = read("torch", _torch)
    libraries = read("libraries", loaded_libraries) or []
    driver, gpus, links = read("driver", driver_and_gpus) or (None, [], {})
    groups = read("groups", process_groups.groups) or []
    found = {
        "format": FORMAT,
        "torch": torch,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": read("packages", _packages),
        "libraries": libraries,
        "duplicates": duplicates(libraries),
        "nccl": read("nccl", lambda: nccl_version(libraries)),
        "driver": driver,
        "gpus": gpus,
        "links": links,
        "default_backends": read("default_backends", process_groups.default_backends),
        "backend_impls": read("backend_impls", process_groups.backend_impls),
        "groups": groups,
        "environment": read("environment", lambda: environment(torch, groups)),
        "limits": read("limits", limits),
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "checkpoint_format": read("checkpoint_format", _checkpoint_format),
    }
    if found["nccl"] is None:
        reasons.setdefault("nccl", "no libnccl is loaded")
    return {**found, "reasons": reasons}


def without_torch() -> dict[str, Any]:
    """Return interpreter and packages: what can be read in a tenth of a second."""
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": _packages(),
    }


def environment(torch: dict[str, Any] | None, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the variables of the allow-list that are set, and what becomes of each.

    Judged for the classes that were built; before a group exists, for gloo and what nccl means.
    """
    version = str((torch or {}).get("version") or "")
    classes = {name for group in groups for name in group["classes"].values()}
    plain = "cpu:gloo,cuda:nccl" if (torch or {}).get("cuda") else "gloo"
    backend = ",".join(sorted(classes)) or plain
    lever = os.environ.get("TORCH_DIST_USE_NCCL2")
    found = {}
    for name, value in allowed(os.environ).items():
        if not version:
            found[name] = {"value": value, "status": "unknown", "to": "", "note": "no torch"}
            continue
        status = status_of(name, backend=backend, torch=version, use_nccl2=lever)
        told = {"status": status.word, "to": status.to, "note": status.note}
        found[name] = {"value": value, **told}
    return found


def _torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        raise LookupError("it is not imported")
    said = torch.version
    return {
        "version": str(torch.__version__),
        "git": said.git_version,
        "cuda": said.cuda,
        "hip": getattr(said, "hip", None),
        "debug": bool(said.debug),
    }


def _packages() -> dict[str, str]:
    """Return the installed packages; of one that is there twice, what an import finds."""
    found: dict[str, str] = {}
    # What lies beside the script or in the working directory is not installed.
    script = os.path.dirname(
        os.path.abspath(getattr(sys.modules["__main__"], "__file__", "") or "")
    )
    here = {"", os.getcwd(), script}
    path = [each for each in sys.path if each not in here]
    for each in importlib.metadata.distributions(path=path):
        name = (each.metadata["Name"] or "?").lower().replace("_", "-")
        found.setdefault(name, each.version)
    found.pop("keepstep", None)  # where it comes from does not change what the stack is
    return dict(sorted(found.items()))


def _checkpoint_format() -> dict[str, Any]:
    """Return the form of checkpoint metadata that this PyTorch writes (docs/checkpoint.md)."""
    module = sys.modules.get("torch.distributed.checkpoint.metadata")
    if module is None:  # loading it would make the job another one
        fields = 6 if version_of(sys.modules["torch"].__version__) >= (2, 15) else 5
        return {"fields": fields, "form": _FORMS[fields], "how": "by the version"}
    fields = len(module.TensorProperties().__getstate__())
    return {"fields": fields, "form": _FORMS.get(fields), "how": "asked the class"}


def main(arguments: list[str]) -> int:
    """Print the fingerprint of this interpreter."""
    if arguments == ["--without-torch"]:
        print(json.dumps(without_torch()))
        return 0
    failed = ""
    try:
        importlib.import_module("torch.distributed.checkpoint.metadata")  # and all of torch
    except Exception as error:  # not only ImportError: a library may be missing, or fit no more
        failed = f"{type(error).__name__}: {error}"
    found = fingerprint()
    if failed:
        found["reasons"]["torch"] = failed
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
