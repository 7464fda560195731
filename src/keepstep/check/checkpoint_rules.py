"""Checkpoints, and limits of time around them (KS4xx)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from keepstep.check.call_rules import is_by_rank
from keepstep.check.finding import Finding, Severity
from keepstep.check.naming import DCP, argument, spreads
from keepstep.check.rules import RULES
from keepstep.check.scene import Part, Scene

_SAVES = (f"{DCP}.save", f"{DCP}.async_save", f"{DCP}.save_state_dict")
_LOADS = (f"{DCP}.load", f"{DCP}.load_state_dict")
_AS_DICT = ("vars", "dataclasses.asdict")
_CAUGHT = ("BaseException", "CheckpointException")


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what the rules KS401 to KS405 find."""
    for part in scene.parts:
        for node in part.nodes:
            if isinstance(node, ast.Try):
                yield from _not_caught(part, node)
            elif isinstance(node, ast.Call) and scene.leap.crosses(15):
                yield from _spread_properties(part, node)
        yield from _load_without_word(scene, part)
    yield from _way_back(scene)
    yield from _short_limit(scene)


def _not_caught(part: Part, node: ast.Try) -> Iterator[Finding]:
    inside = {each for statement in node.body for each in ast.walk(statement)}
    call = next((c for c in part.called(*_SAVES, *_LOADS) if c in inside), None)
    if call is None:
        return
    caught = [name for handler in node.handlers for name in _types(handler)]
    if any(name.rpartition(".")[2] in _CAUGHT for name in caught) or "" in caught:
        return
    for handler in node.handlers:
        if "Exception" in _types(handler) and not _raises(handler):
            yield RULES["KS401"].at(
                part,
                handler,
                f"except Exception around {ast.unparse(call.func)} of line {call.lineno}",
            )


def _types(handler: ast.ExceptHandler) -> list[str]:
    if handler.type is None:
        return [""]
    each = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(one) for one in each]


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in handler.body)


def _spread_properties(part: Part, call: ast.Call) -> Iterator[Finding]:
    if part.names.of(call.func).endswith("TensorProperties"):
        return  # it takes all its own fields
    for keyword in call.keywords:
        if keyword.arg is None and _is_properties(part, keyword.value):
            yield RULES["KS402"].at(part, call, f"{ast.unparse(call.func)}(**properties)")


def _is_properties(part: Part, node: ast.expr) -> bool:
    """Return whether an expression is all fields of the properties of a checkpoint's tensor."""
    inner: ast.expr | None = None
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        inner = node.value
    elif isinstance(node, ast.Call) and part.names.of(node.func) in _AS_DICT and node.args:
        inner = node.args[0]
    name = inner.attr if isinstance(inner, ast.Attribute) else ""
    name = inner.id if isinstance(inner, ast.Name) else name
    return name in ("properties", "tensor_properties", "props")


def _load_without_word(scene: Scene, part: Part) -> Iterator[Finding]:
    for call in part.called("torch.load"):
        if argument(call, "weights_only") is not None or spreads(call):
            continue
        crosses = scene.leap.crosses(6)
        yield RULES["KS403"].at(
            part,
            call,
            "torch.load without weights_only"
            + ("" if crosses else ": True since 2.6, on both sides of this leap"),
            severity=Severity.CHANGES if crosses else Severity.NOTE,
        )


def _way_back(scene: Scene) -> Iterator[Finding]:
    if not (scene.leap.crosses(15) or scene.leap.falls_below(15)):
        return
    if any(name.endswith("write_old_format") for part in scene.parts for _, name in part.calls):
        return
    for part in scene.parts:
        call = next(_new_form(part), None)
        if call is None:
            continue
        back = scene.leap.falls_below(15)
        yield RULES["KS404"].at(
            part,
            call,
            f"{ast.unparse(call.func)} of 2.15 writes what 2.14 cannot load"
            + (", and 2.14 is where this leap goes" if back else ""),
            severity=Severity.BREAKS if back else Severity.CHANGES,
        )
        return


def _new_form(part: Part) -> Iterator[ast.Call]:
    """Yield the saves of a module that are not given a writer of the old form."""
    writes_old = any(name == "keepstep.checkpoint.writer" for _, name in part.calls)
    for call in part.called(*_SAVES):
        if not (writes_old and argument(call, "storage_writer")):
            yield call


def _short_limit(scene: Scene) -> Iterator[Finding]:
    if not any(map(_saves, scene.parts)):
        return
    for init in scene.inits:
        if init.timeout or init.open:
            continue
        named = sorted(each for each in init.backends if _is_explicit(each))
        if named and scene.leap.crosses(15):
            yield RULES["KS405"].at(
                init.part,
                init.call,
                f"no timeout for {named[0]}: 30 minutes become 10, and the job saves checkpoints",
            )
        elif any(each == "nccl" for each in init.backends) and _one_rank_saves(scene):
            crosses = scene.leap.crosses(2)
            yield RULES["KS405"].at(
                init.part,
                init.call,
                "no timeout: nccl has 10 minutes"
                + ("" if crosses else ", before as after")
                + ", and one rank saves while the others wait",
                severity=Severity.CHANGES if crosses else Severity.RISK,
            )


def _is_explicit(spelling: str) -> bool:
    return spelling in ("nccl2", "nccl-lazy", "nccl-legacy")


def _saves(part: Part) -> bool:
    return next(part.called(*_SAVES, "torch.save"), None) is not None


def _one_rank_saves(scene: Scene) -> bool:
    return any(
        isinstance(node, ast.If) and is_by_rank(node.test)
        for part in scene.parts
        for call in part.called("torch.save")
        for node in part.above(call)
    )
