"""How many communicators a rank gets, counted on torch's fake process group (KS303)."""

from __future__ import annotations

import ast
import math
from typing import Any

from keepstep.check.ask import NoAnswerError, ask
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.layout import MOST_RANKS, Layout, read_layout
from keepstep.check.machine import interpreter
from keepstep.check.naming import DIST, argument
from keepstep.check.question import Question
from keepstep.check.rules import RULES
from keepstep.check.scene import Part, Scene

# MiB of device memory, 2 ranks on H200: torch-2.15.0, NCCL 2.30.7.
UNUSED_NVLINK, USED_NVLINK, SOCKETS = 197, 485, 17

_PATIENCE_S = 300.0
_MESHES = (f"{DIST}.init_device_mesh", f"{DIST}.device_mesh.init_device_mesh")


def count(scene: Scene, question: Question) -> tuple[list[Finding], list[NotLooked]]:
    """Return the communicators of every layout that was given or is written in the code."""
    findings: list[Finding] = []
    not_looked: list[NotLooked] = []
    for text in question.groups:
        layout = read_layout(text)
        _one(scene, question, layout, None, findings, not_looked)
    for part in scene.parts:
        for call in part.called(*_MESHES):
            found = written_layout(part, call)
            if found is not None and scene.any_nccl:
                _one(scene, question, found, (part, call), findings, not_looked)
            elif found is None and scene.any_nccl and not question.groups:
                not_looked.append(
                    NotLooked(
                        what=f"communicators of the mesh at {part.file}:{call.lineno}",
                        why="its sizes are only known when it runs",
                        matters=False,
                        mend="--groups 'mesh=dp:512,tp:8'",
                    )
                )
    return findings, not_looked


def written_layout(part: Part, call: ast.Call) -> Layout | None:
    """Return the layout of a mesh whose sizes are written there."""
    shape = argument(call, "mesh_shape", 1)
    if not isinstance(shape, ast.Tuple | ast.List):
        return None
    sizes = [each.value for each in shape.elts if isinstance(each, ast.Constant)]
    whole = [size for size in sizes if isinstance(size, int) and size > 0]
    if not whole or len(whole) != len(shape.elts) or math.prod(whole) > MOST_RANKS:
        return None
    named = argument(call, "mesh_dim_names")
    names = [f"dim{index}" for index in range(len(whole))]
    if isinstance(named, ast.Tuple | ast.List) and len(named.elts) == len(whole):
        names = [
            str(each.value) if isinstance(each, ast.Constant) else name
            for each, name in zip(named.elts, names, strict=True)
        ]
    return Layout(names=tuple(names), sizes=tuple(whole), world=math.prod(whole))


def _one(
    scene: Scene,
    question: Question,
    layout: Layout,
    place: tuple[Part, ast.Call] | None,
    findings: list[Finding],
    not_looked: list[NotLooked],
) -> None:
    try:
        answer = _ask(question, layout)
    except NoAnswerError as error:
        not_looked.append(
            NotLooked(
                what=f"communicators of mesh={layout}",
                why=str(error),
                matters=place is None,
                mend="name a stack that has torch: --stack NAME",
            )
        )
        return
    severity = Severity.CHANGES if scene.leap.crosses(15) else Severity.NOTE
    if not scene.any_nccl or answer["most"] == 0:
        severity = Severity.NOTE
    text = sentence(layout, answer)
    rule = RULES["KS303"]
    findings.append(
        rule.here(text, severity=severity)
        if place is None
        else rule.at(*place, text, severity=severity)
    )


def _ask(question: Question, layout: Layout) -> dict[str, Any]:
    python = interpreter(question)
    if not python:
        raise NoAnswerError("this environment has no torch, and no stack was named")
    mesh = {"names": layout.names, "sizes": layout.sizes, "flat": layout.flat}
    request = {"world": layout.world, "meshes": [mesh]}
    return ask(python, "ask_groups.py", request, _PATIENCE_S)


def sentence(layout: Layout, answer: dict[str, Any]) -> str:
    """Return the count and what it costs."""
    most = answer["most"]
    groups = ", ".join(f"{what} of {size:,}" for what, size in answer["of_rank_0"])
    text = (
        f"mesh={layout}: {layout.world:,} ranks make {answer['groups']:,} groups beside the world; "
        f"a rank is in {most}" + (f" ({groups})" if groups else "")
    )
    if most == 0:
        return f"{text}: it is the world itself"
    return (
        f"{text}: eager, {most} x {UNUSED_NVLINK} = {most * UNUSED_NVLINK:,} MiB a rank before the "
        f"first use over NVLink ({most * USED_NVLINK:,} MiB once used), {most * SOCKETS:,} MiB "
        f"over sockets"
    )
