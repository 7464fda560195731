"""What of a fingerprint is material: the fields that decide whether two runs ran on the same thing.

What follows from where a process runs (paths, host, limits) is not; nor is what depends on how far
it has come: libraries that CUDA loads later.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keepstep.stack.variables import is_material

# Loaded as soon as torch is imported, on every machine.
_LINKED = re.compile(
    r"lib(torch(_cpu|_cuda|_hip|_python|_nvshmem)?|c10(_cuda|_hip)?|nccl|rccl|cudart|cudnn|"
    r"cublas(Lt)?|cufft|cusparse|cusolver|nvshmem_host)\.so"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not the same; "" stands for a field that is not there."""

    field: str
    first: str
    second: str
    material: bool = True


def material(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """Return the material fields of a fingerprint, flat: name to text.

    Two fingerprints of the same thing have equal ones, on whichever machine and rank.
    """
    return {
        **_torch(fingerprint),
        **_libraries(fingerprint),
        **_machine(fingerprint),
        **_groups(fingerprint),
        **_variables(fingerprint),
        "packages": _digest(fingerprint.get("packages") or {}),
    }


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two fingerprints, material fields first."""
    one, other = material(first), material(second)
    one.pop("packages"), other.pop("packages")  # named one by one
    found = _compare(one, other, material=True)
    one, other = (_prefixed("package", each.get("packages") or {}) for each in (first, second))
    found += _compare(one, other, material=True)
    return found + _compare(_rest(first), _rest(second), material=False)


def same_nccl(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the version of NCCL that two fingerprints share, "" where they do not."""
    one, other = material(first), material(second)
    same = all(one.get(name) == other.get(name) for name in ("nccl", "library.libnccl.so.2"))
    return one["nccl"] if same and one.get("nccl") else ""


def drift(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return what has changed in an environment since it was made: what is installed and loaded.

    Variables, groups and the machine are left out: they belong to the process that asks.
    """
    installed = ("torch.", "library.", "package.", "python", "nccl", "duplicates")
    found = differences(then, now)
    return [each for each in found if each.material and each.field.startswith(installed)]


def packages_drift(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return what has changed among the packages and of the interpreter: needs no torch."""
    one, other = (
        {"python": str(each.get("python")), **_prefixed("package", each.get("packages") or {})}
        for each in (then, now)
    )
    return _compare(one, other, material=True)


def _torch(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    torch = fingerprint.get("torch") or {}
    found = {f"torch.{name}": torch.get(name) for name in ("version", "git", "cuda", "hip")}
    found["python"] = fingerprint.get("python")
    found["nccl"] = (fingerprint.get("nccl") or {}).get("version")
    builds = fingerprint.get("backend_impls") or {}
    # A group's, although there may be none yet: a variable of the launcher can decide it.
    found.update({f"group.{name}": builds.get(name) for name in ("gloo", "nccl")})
    found["checkpoint.form"] = (fingerprint.get("checkpoint_format") or {}).get("form")
    return {name: str(value) for name, value in found.items() if value}


def _libraries(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in fingerprint.get("libraries") or []:
        if _LINKED.match(each["name"]):
            found.setdefault(f"library.{each['name']}", []).append(
                each["build_id"] or "no build id"
            )
    twice = sorted(each["name"] for each in fingerprint.get("duplicates") or [])
    texts = {name: " and ".join(sorted(ids)) for name, ids in sorted(found.items())}
    return {**texts, "duplicates": ", ".join(twice)} if twice else texts


def _machine(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    models = Counter(str(gpu.get("name")) for gpu in fingerprint.get("gpus") or [])
    found = {"driver": str(fingerprint["driver"])} if fingerprint.get("driver") else {}
    if models:
        found["gpus"] = ", ".join(f"{count} x {name}" for name, count in sorted(models.items()))
    return found


def _groups(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds of groups: names and numbers of groups differ from rank to rank."""
    classes, timeouts = set(), set()
    for each in fingerprint.get("groups") or []:
        built = ", ".join(sorted(f"{device}:{name}" for device, name in each["classes"].items()))
        classes.add(built)
        if each["timeout_s"] is not None:
            timeouts.add(f"{built} {each['timeout_s']:g} s")
    found = {"group.classes": classes, "group.timeouts": timeouts}
    return {name: "; ".join(sorted(texts)) for name, texts in found.items() if texts}


def _variables(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    environment = fingerprint.get("environment") or {}
    return {
        f"variable.{name}": str(each["value"])
        for name, each in sorted(environment.items())
        if is_material(name)
    }


def _rest(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """Return what is worth showing beside: it explains, and decides nothing."""
    found = _prefixed("default", fingerprint.get("default_backends") or {})
    builds = fingerprint.get("backend_impls") or {}
    found.update({f"builds.{k}": str(v) for k, v in builds.items() if k not in ("gloo", "nccl")})
    found.update(_prefixed("limit", fingerprint.get("limits") or {}))
    found["host"] = str(fingerprint.get("host") or "")
    found["kernel"] = str(fingerprint.get("kernel") or "")
    return found


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    return {f"{prefix}.{name}": str(value) for name, value in values.items()}


def _compare(one: Mapping[str, str], other: Mapping[str, str], material: bool) -> list[Difference]:
    names = [*one, *(name for name in other if name not in one)]
    return [
        Difference(name, one.get(name, ""), other.get(name, ""), material)
        for name in names
        if one.get(name) != other.get(name)
    ]


def _digest(packages: Mapping[str, str]) -> str:
    lines = "\n".join(f"{name}=={version}" for name, version in sorted(packages.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16] if packages else ""
