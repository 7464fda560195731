"""Groups and calls that eager communicators change (KS3xx); counting is in counted.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from keepstep.check.device_rules import COLLECTIVES
from keepstep.check.finding import Finding, Severity
from keepstep.check.naming import DIST, argument, is_none
from keepstep.check.rules import RULES
from keepstep.check.scene import Part, Scene

_NEW_GROUP = f"{DIST}.new_group"
_ONE_BY_ONE = tuple(f"{DIST}.{name}" for name in ("send", "recv", "isend", "irecv"))
_RANK = re.compile(r"(^|_)rank(_id)?$|^get_(\w+_)?rank$|_rank$")


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what the rules KS301, KS302 and KS304 to KS306 find."""
    read = _names_read(scene)
    for part in scene.parts:
        for call in part.called(_NEW_GROUP):
            yield from _on_some_ranks(part, call)
            if scene.leap.new >= 15 and scene.any_nccl:
                yield from _never_used(scene, part, call, read)
        yield from _without_wait(part)
        yield from _gone(part)
        if scene.leap.new >= 15 and scene.any_nccl:
            yield from _one_by_one(scene, part)


def is_by_rank(test: ast.expr) -> bool:
    """Return whether a condition depends on which rank this is.

    ``rank == 0`` and ``get_rank() in ranks`` do; ``len(ranks) > 1`` and ``rank is None`` do not.
    """
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) and side.value is None for side in sides):
            continue
        if any(_is_rank(side) for side in sides):
            return True
    return False


def _is_rank(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else ""
    name = node.id if isinstance(node, ast.Name) else name
    if isinstance(node, ast.BinOp):  # rank % 8 == 0
        return _is_rank(node.left)
    return bool(_RANK.search(name))


def _on_some_ranks(part: Part, call: ast.Call) -> Iterator[Finding]:
    alone = argument(call, "use_local_synchronization", 4)
    if not is_none(alone) and not (isinstance(alone, ast.Constant) and alone.value is False):
        return
    below: ast.AST = call
    for node in part.above(call):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.If) and below is not node.test and is_by_rank(node.test):
            other = node.orelse if below in node.body else node.body
            if not _calls_new_group(part, other):
                condition = " ".join(ast.unparse(node.test).split())
                yield RULES["KS301"].at(
                    part, call, f"new_group under `if {condition}` (line {node.lineno})"
                )
            return
        below = node


def _calls_new_group(part: Part, body: list[ast.stmt]) -> bool:
    inside = {node for statement in body for node in ast.walk(statement)}
    return any(call in inside for call in part.called(_NEW_GROUP))


def _names_read(scene: Scene) -> set[str]:
    """Return every identifier that is read anywhere, as a name, an attribute or an export."""
    found: set[str] = set()
    for part in scene.parts:
        for node in part.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)  # getattr, __all__
            elif isinstance(node, ast.ImportFrom):
                found.update(alias.name for alias in node.names)
    return found


def _targets(part: Part, call: ast.Call) -> list[str] | None:
    """Return what a call's result is given to; [] where it is thrown away, None where unclear."""
    parent = part.parents.get(call)
    if isinstance(parent, ast.Expr):
        return []
    if not (isinstance(parent, ast.Assign) and parent.value is call):
        return None
    names = []
    for target in parent.targets:
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Attribute):
            names.append(target.attr)
        else:
            return None
    return names


def _never_used(scene: Scene, part: Part, call: ast.Call, read: set[str]) -> Iterator[Finding]:
    names = _targets(part, call)
    if names is None or any(name in read for name in names) or _is_gloo(call):
        return
    what = f"{' = '.join(names)} is never read" if names else "its result is thrown away"
    severity = Severity.CHANGES if scene.leap.crosses(15) else Severity.RISK
    many = any(isinstance(each, ast.For | ast.While) for each in part.above(call))
    loop = ", made in a loop: one for each turn in which this rank is a member" if many else ""
    yield RULES["KS302"].at(part, call, f"a group is made and {what}{loop}", severity=severity)


def _is_gloo(call: ast.Call) -> bool:
    backend = argument(call, "backend", 2)
    return isinstance(backend, ast.Constant) and backend.value in ("gloo", "fake", "mpi")


def _without_wait(part: Part) -> Iterator[Finding]:
    for call in part.called(*COLLECTIVES):
        flag = argument(call, "async_op")
        name = part.names.of(call.func).rpartition(".")[2]
        started = isinstance(flag, ast.Constant) and flag.value is True
        if not started and name not in ("isend", "irecv"):
            continue
        targets = _targets(part, call)
        if targets is None:
            continue
        if not targets:
            yield RULES["KS304"].at(part, call, f"{name} is started and its work thrown away")
        elif not any(_read_in(part, target) for target in targets):
            yield RULES["KS304"].at(part, call, f"{name} is started and {targets[0]} never read")


def _read_in(part: Part, name: str) -> bool:
    for node in part.nodes:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            return True
    return False


def _gone(part: Part) -> Iterator[Finding]:
    for call, name in part.calls:
        if name.startswith(f"{DIST}.") and name.endswith("_multigpu"):
            yield RULES["KS306"].at(part, call, f"{name} is called")


def _one_by_one(scene: Scene, part: Part) -> Iterator[Finding]:
    for call in part.called(*_ONE_BY_ONE):
        lazy = scene.inits and all(
            "nccl-lazy" in each for init in scene.inits for each in init.backends or ("",)
        )
        if lazy:
            continue
        name = part.names.of(call.func).rpartition(".")[2]
        own = not is_none(argument(call, "group", 2))
        text = f"{name} by itself" + (" on a group of its own" if own else "")
        yield RULES["KS305"].at(part, call, text, severity=Severity.NOTE if own else Severity.RISK)
