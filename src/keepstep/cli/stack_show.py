"""``keepstep stack show``: what a stack really contains, read from its running interpreter."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from keepstep.cli.checkpoint_answer import count_text, size_text
from keepstep.cli.stack_answer import (
    ORIGINS,
    JsonOption,
    NameArgument,
    answered,
    disk_text,
    drift_lines,
)
from keepstep.exit_codes import ExitCode
from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.material import Difference, drift, material
from keepstep.stack.named import Stack, at_creation, find_stack, to_json

_NCCL = "nccl"  # the names of which a reader wants to know the class


@answered
def show(name: NameArgument, as_json: JsonOption = False) -> ExitCode:
    """Start a stack's interpreter and print what it runs on.

    Exit code 1: it has changed since it was made, or loads a library twice; 3: what it was is not
    known.
    """
    stack = find_stack(name)
    then, now = at_creation(stack), ask_fingerprint(stack)
    changed = drift(then, now) if then else []
    if as_json:
        facts = {"drift": [asdict(each) for each in changed], "material": material(now)}
        print(json.dumps({"stack": to_json(stack), **facts, "fingerprint": now}))
    else:
        print("\n".join(_lines(stack, now, then is not None, changed)))
    if changed or now["duplicates"] or not now["torch"]:
        return ExitCode.FAIL
    return ExitCode.PASS if then else ExitCode.INCONCLUSIVE


def _lines(
    stack: Stack, found: dict[str, Any], known: bool, changed: list[Difference]
) -> list[str]:
    reasons = found["reasons"]
    lines = [_first(stack, found), f"  interpreter: {shlex.join(stack.command())}"]
    lines.append(f"  {ORIGINS[stack.origin]} {stack.made}; disk: {disk_text(stack)}")
    if stack.variables:
        lines.append(f"  gives its jobs: {shlex.join(f'{k}={v}' for k, v in _pairs(stack))}")
    lines.append(f"  Python {found['python']}, {count_text(len(found['packages']), 'package')}")
    lines.append(f"  NCCL: {_nccl(found, reasons)}")
    lines += [f"  {line}" for line in _backend_lines(found)]
    form = found["checkpoint_format"]
    if form:
        lines.append(f"  writes checkpoints of form {form['form']} (docs/checkpoint.md)")
    lines += [f"  {line}" for line in _machine_lines(found, reasons)]
    lines.append(f"  loaded: {count_text(len(found['libraries']), 'shared object')} that matter")
    lines += [f"  {line}" for line in _duplicate_lines(found)]
    lines += [f"  {line}" for line in _variable_lines(found)]
    if changed:
        lines += [f"  {line}" for line in drift_lines(changed)]
    else:
        lines.append("  as it was made" if known else "  what it was when it was made is not known")
    return lines


def _first(stack: Stack, found: dict[str, Any]) -> str:
    torch = found["torch"]
    if not torch:
        return f"stack {stack.name}: no PyTorch: {found['reasons'].get('torch')}"
    wheel = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}"
    wheel = wheel if torch["cuda"] or torch["hip"] else "CPU only"
    return f"stack {stack.name}: PyTorch {torch['version']} ({torch['git'][:12]}), {wheel}"


def _pairs(stack: Stack) -> list[tuple[str, str]]:
    return sorted(stack.variables.items())


def _nccl(found: dict[str, Any], reasons: dict[str, str]) -> str:
    nccl = found["nccl"]
    return f"{nccl['version']}, really loaded" if nccl else f"none: {reasons.get('nccl')}"


def _backend_lines(found: dict[str, Any]) -> list[str]:
    builds, defaults = found["backend_impls"] or {}, found["default_backends"] or {}
    names = ["gloo", *sorted(name for name in builds if name.startswith(_NCCL))]
    lines = [f"backend {name} builds {builds[name]}" for name in names if name in builds]
    mine = [f"{device}: {defaults[device]}" for device in ("cpu", "cuda") if device in defaults]
    return [*lines, f"asked for none, a job gets {', '.join(mine)}"] if mine else lines


def _machine_lines(found: dict[str, Any], reasons: dict[str, str]) -> list[str]:
    lines = [f"driver: {found['driver'] or 'none: ' + reasons.get('driver', 'not found')}"]
    for gpu in found["gpus"]:
        lines.append(f"GPU {gpu['index']}: {gpu['name']}, {gpu['uuid']}")
    lines += [f"GPUs {pair}: {how}" for pair, how in found["links"].items()]
    limits = found["limits"] or {}
    told = {
        "/dev/shm": limits.get("shm_bytes"),
        "locked memory": limits.get("memlock"),
        "memory": limits.get("memory"),
    }
    texts = [f"{name} {size_text(size)}" for name, size in told.items() if size is not None]
    cpus = limits.get("cpus") or limits.get("cpus_allowed")
    return [*lines, f"limits: {', '.join([*texts, f'{cpus:g} CPUs'] if cpus else texts)}"]


def _duplicate_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for each in found["duplicates"]:
        how = "two different builds" if each["different"] else "twice the same build"
        lines.append(f"{each['name']} is loaded twice ({how}): {', '.join(each['paths'])}")
    return lines


def _variable_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for name, each in (found["environment"] or {}).items():
        became = f"{each['status']} {('as ' + each['to']) if each['to'] else ''}".strip()
        note = f" ({each['note']})" if each["note"] else ""
        lines.append(f"variable {name}={each['value']}: {became}{note}")
    return lines
