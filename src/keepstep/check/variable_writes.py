"""Where code sets environment variables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from keepstep.check.naming import argument
from keepstep.check.scene import Part


@dataclass(frozen=True, slots=True)
class Write:
    """One place that sets one variable."""

    name: str
    value: ast.expr
    node: ast.AST

    @property
    def text(self) -> str | None:
        """The value, where it is written there."""
        return str(self.value.value) if isinstance(self.value, ast.Constant) else None


def writes(part: Part) -> Iterator[Write]:
    """Yield os.environ[...] = ..., setdefault, update, putenv and a dict of variables."""
    for node in part.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = _subscript(part, target)
                if name:
                    yield Write(name, node.value, node)
        elif isinstance(node, ast.Call):
            yield from _called(part, node)


def _environment(part: Part, node: ast.expr) -> bool:
    return part.names.of(node) in ("os.environ", "environ")


def _subscript(part: Part, node: ast.expr) -> str:
    if not isinstance(node, ast.Subscript) or not _environment(part, node.value):
        return ""
    return _text(node.slice)


def _called(part: Part, call: ast.Call) -> Iterator[Write]:
    name = part.names.of(call.func)
    if name in ("os.environ.setdefault", "os.putenv", "environ.setdefault"):
        if len(call.args) == 2 and (variable := _text(call.args[0])):
            yield Write(variable, call.args[1], call)
    elif name in ("os.environ.update", "environ.update"):
        for keyword in call.keywords:
            if keyword.arg:
                yield Write(keyword.arg, keyword.value, call)
        yield from _of_dict(argument(call, "", 0), call)
    elif env := argument(call, "env"):  # subprocess.run(..., env={...})
        yield from _of_dict(env, call)


def _of_dict(node: ast.expr | None, call: ast.Call) -> Iterator[Write]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and (variable := _text(key)):
                yield Write(variable, value, call)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
