"""Code that asks which backend it is on, or expects the legacy one (KS2xx)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from keepstep.check.finding import Finding, Severity
from keepstep.check.naming import DIST
from keepstep.check.rules import RULES
from keepstep.check.scene import Init, Part, Scene

_CLASS = f"{DIST}.ProcessGroupNCCL"
_SPELLINGS = {"nccl2", "nccl-lazy", "nccl-legacy"}

# Methods of ProcessGroupNCCL that ProcessGroupNCCL2 does not have: dir() of both in 2.15.0.
LEGACY_ONLY = frozenset(
    (
        *("_group_start", "_group_end", "_is_initialized", "_set_default_timeout"),
        *("_set_enable_nan_check", "comm_split_count", "uid"),
    )
)
_GIVES_BACKEND = ("_get_backend", "get_backend_impl")

# The oldest minor of PyTorch 2 that is known to have a spelling, and how it is known.
_FIRST = {"nccl-legacy": 12, "nccl-lazy": 12}


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what the rules KS201 to KS204 find."""
    for init in scene.inits:
        yield from _unknown_spelling(scene, init)
    if scene.leap.new < 15:
        return
    for part in scene.parts:
        for node in part.nodes:
            yield from _compared(part, node)
            yield from _begins(part, node)
            yield from _expected_class(part, node)
            yield from _legacy_call(part, node)


def _unknown_spelling(scene: Scene, init: Init) -> Iterator[Finding]:
    for spelling in sorted(init.backends):
        for name in (part.rpartition(":")[2] for part in spelling.split(",")):
            if scene.leap.oldest < _FIRST.get(name, 0):
                yield RULES["KS204"].at(
                    init.part,
                    init.call,
                    f"backend {name!r}, and 2.{scene.leap.oldest} is one of the two versions",
                )


def _is_name(part: Part, node: ast.expr) -> bool:
    """Return whether an expression is the name nccl."""
    if isinstance(node, ast.Constant):
        return node.value == "nccl"
    return part.names.of(node) == f"{DIST}.Backend.NCCL"


def _holds_name(part: Part, node: ast.expr) -> bool:
    """Return whether a list of names has nccl and none of the others."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return False
    others = {each.value for each in node.elts if isinstance(each, ast.Constant)}
    return any(_is_name(part, each) for each in node.elts) and not others & _SPELLINGS


def _asks_group(part: Part, node: ast.expr) -> bool | None:
    """Return True for get_backend(), False for a thing called backend, None for anything else."""
    if isinstance(node, ast.Call):
        name = part.names.of(node.func)
        if _is_get_backend(name):
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "name", "strip"):
            return _asks_group(part, node.func.value)
        return None
    if isinstance(node, ast.Name) and _assigned_from_get_backend(part, node):
        return True
    name = node.attr if isinstance(node, ast.Attribute) else ""
    name = node.id if isinstance(node, ast.Name) else name
    return False if "backend" in name.lower() else None


def _is_get_backend(name: str) -> bool:
    """Return whether a name is torch.distributed.get_backend, also through a wrapper of it."""
    owner, _, last = name.rpartition(".")
    return last == "get_backend" and owner.rpartition(".")[2] in ("distributed", "dist", "c10d")


def _assigned_from_get_backend(part: Part, node: ast.Name) -> bool:
    for other in ast.walk(part.function(node)):
        if (
            isinstance(other, ast.Assign)
            and isinstance(other.value, ast.Call)
            and any(isinstance(each, ast.Name) and each.id == node.id for each in other.targets)
        ):
            return _is_get_backend(part.names.of(other.value.func))
    return False


def _compared(part: Part, node: ast.AST) -> Iterator[Finding]:
    for asked, expression in _comparisons(part, node):
        group = _asks_group(part, asked)
        if group is None or _aware(part, node):
            continue
        yield RULES["KS201"].at(
            part,
            expression,
            f"{_short(expression)}: {'the name of a group' if group else 'a setting'} compared "
            'with "nccl"',
            severity=Severity.CHANGES if group else Severity.NOTE,
        )


def _begins(part: Part, node: ast.AST) -> Iterator[Finding]:
    """``get_backend().startswith("nccl")`` is true of all four, whatever they are."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return
    text = node.args[0]
    if node.func.attr != "startswith" or not _is_name(part, text):
        return
    if _asks_group(part, node.func.value) is not None:
        yield RULES["KS201"].at(
            part,
            node,
            f"{_short(node)}: true of nccl, nccl2, nccl-lazy and nccl-legacy",
            severity=Severity.NOTE,
            why="they are four spellings of three classes that do not have the same methods "
            "(measured, 2.15.0)",
        )


def _aware(part: Part, node: ast.AST) -> bool:
    """Return whether the other spellings are compared with right beside it."""
    top = node
    for each in part.above(node):
        if not isinstance(each, ast.BoolOp | ast.If | ast.Match | ast.IfExp):
            break
        top = each.test if isinstance(each, ast.If | ast.IfExp) else each
        if isinstance(each, ast.If):
            break
    constants = {each.value for each in ast.walk(top) if isinstance(each, ast.Constant)}
    return bool({each for each in constants if isinstance(each, str)} & _SPELLINGS)


def _comparisons(part: Part, node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return what is compared with the name, and the expression to point at."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
            if _is_name(part, right):
                return [(left, node)]
            return [(right, node)] if _is_name(part, left) else []
        if isinstance(node.ops[0], ast.In | ast.NotIn) and _holds_name(part, right):
            return [(left, node)]
    if isinstance(node, ast.Match):
        named = (each.pattern for each in node.cases)
        if any(isinstance(p, ast.MatchValue) and _is_name(part, p.value) for p in named):
            return [(node.subject, node.subject)]
    looked_up = _looked_up(node)
    if looked_up is not None:
        table, key = looked_up
        if _is_table_of_names(part, table):
            return [(key, key)]
    return []


def _looked_up(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return table and key of ``table[key]`` and ``table.get(key)``."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return (node.func.value, node.args[0]) if node.func.attr == "get" else None
    return None


def _is_table_of_names(part: Part, node: ast.expr) -> bool:
    """Return whether a dict has the key nccl and none of the other spellings."""
    if isinstance(node, ast.Name):
        node = part.tables.get(node.id, node)
    if not isinstance(node, ast.Dict):
        return False
    keys = [key for key in node.keys if key is not None]
    others = {key.value for key in keys if isinstance(key, ast.Constant)}
    return any(_is_name(part, key) for key in keys) and not others & _SPELLINGS


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _expected_class(part: Part, node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.Call) and len(node.args) == 2:
        name = part.names.of(node.func)
        if name in ("isinstance", "issubclass") and _only_legacy(part, node.args[1]):
            yield _class_finding(part, node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = (node.left, node.comparators[0])
        is_type = any(
            isinstance(each, ast.Call) and part.names.of(each.func) == "type" for each in sides
        )
        if is_type and any(part.names.of(each) == _CLASS for each in sides):
            yield _class_finding(part, node)
        named = any(isinstance(s, ast.Constant) and s.value == "ProcessGroupNCCL" for s in sides)
        if named and any("__name__" in ast.unparse(each) for each in sides):
            yield _class_finding(part, node)


def _class_finding(part: Part, node: ast.expr) -> Finding:
    """Breaks where the job stops without that class; elsewhere a branch is skipped."""
    stops = False
    for each in part.above(node):
        if isinstance(each, ast.Assert):
            stops = True
        if isinstance(each, ast.If):
            stops = any(isinstance(statement, ast.Raise) for statement in each.body)
        if isinstance(each, ast.stmt):
            break
    return RULES["KS202"].at(
        part,
        node,
        _short(node) + ("" if stops else ": this branch is no longer taken"),
        severity=Severity.BREAKS if stops else Severity.CHANGES,
    )


def _only_legacy(part: Part, node: ast.expr) -> bool:
    classes = list(node.elts) if isinstance(node, ast.Tuple) else [node]
    names = {part.names.of(each) for each in classes}
    return _CLASS in names and not any(name.startswith(f"{_CLASS}2") for name in names)


def _legacy_call(part: Part, node: ast.AST) -> Iterator[Finding]:
    if not isinstance(node, ast.Attribute) or node.attr not in LEGACY_ONLY:
        return
    source = node.value
    if isinstance(source, ast.Name):
        source = _assigned(part, source) or source
    called = source.func if isinstance(source, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else ""
    name = called.id if isinstance(called, ast.Name) else name
    if name in _GIVES_BACKEND and not _on_cpu(source) and not _guarded(part, node):
        yield RULES["KS203"].at(part, node, f"{_short(node)}: only ProcessGroupNCCL has it")


def _guarded(part: Part, node: ast.AST) -> bool:
    """Return whether the code has asked before whether it is there."""
    for each in part.above(node):
        if isinstance(each, ast.If | ast.IfExp):
            text = ast.unparse(each.test)
            if "isinstance(" in text or "hasattr(" in text:
                return True
    return False


def _on_cpu(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and each.value == "cpu" for each in ast.walk(node))


def _assigned(part: Part, node: ast.Name) -> ast.expr | None:
    for other in ast.walk(part.function(node)):
        if isinstance(other, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == node.id for each in other.targets
        ):
            return other.value
    return None
