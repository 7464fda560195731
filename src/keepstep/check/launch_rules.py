"""What the launcher passes, and what the script takes (KS6xx)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from keepstep.check.finding import Finding, Severity
from keepstep.check.rules import RULES
from keepstep.check.scene import Part, Scene


def check(scene: Scene, gpus: int | None) -> Iterator[Finding]:
    """Yield what the rules KS601 to KS603 find.

    Args:
        scene: The job.
        gpus: Devices of a host; None where that is not known.
    """
    yield from _dash(scene)
    yield from _not_passed(scene)
    yield from _too_many(scene, gpus)


def _spelled(part: Part) -> dict[str, ast.Call]:
    """Return every spelling of an option of the local rank, with its call."""
    found = {}
    for call in part.options.values():
        for each in call.args:
            if isinstance(each, ast.Constant) and each.value in ("--local_rank", "--local-rank"):
                found[str(each.value)] = call
    return found


def _dash(scene: Scene) -> Iterator[Finding]:
    if not scene.launch.passes_local_rank:
        return
    spelled = {name: (part, call) for part in scene.parts for name, call in _spelled(part).items()}
    if "--local-rank" in spelled or _takes_all(scene):
        return
    if "--local_rank" in spelled:
        part, call = spelled["--local_rank"]
        yield RULES["KS601"].at(part, call, "only --local_rank is taken, with an underscore")
    elif any(part.options for part in scene.parts):
        part = next(part for part in scene.parts if part.options)
        call = next(iter(part.options.values()))
        yield RULES["KS601"].at(part, call, "the script takes options, and not --local-rank")


def _takes_all(scene: Scene) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "parse_known_args"
        for part in scene.parts
        for node in part.nodes
    )


def _not_passed(scene: Scene) -> Iterator[Finding]:
    if scene.launch.passes_local_rank or _reads_local_rank(scene):
        return
    for part in scene.parts:
        spelled = _spelled(part)
        used = any(
            isinstance(node, ast.Attribute) and node.attr == "local_rank"
            for each in scene.parts
            for node in each.nodes
        )
        if spelled and used:
            sure = scene.launch.launcher == "torchrun"
            yield RULES["KS602"].at(
                part,
                next(iter(spelled.values())),
                "the local rank comes from an option, and LOCAL_RANK is not read",
                severity=Severity.RISK if sure else Severity.NOTE,
            )


def _reads_local_rank(scene: Scene) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value == "LOCAL_RANK"
        for part in scene.parts
        for node in part.nodes
    )


def _too_many(scene: Scene, gpus: int | None) -> Iterator[Finding]:
    options = scene.launch.launcher_options
    asked = options.get("nproc_per_node", options.get("workers", ""))
    if gpus and asked.isdigit() and int(asked) > gpus and scene.any_nccl:
        yield RULES["KS603"].here(f"{asked} ranks on a host, and its GPUs are {gpus}")
