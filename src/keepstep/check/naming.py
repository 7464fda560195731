"""What a name in a module stands for: `dist.barrier` is `torch.distributed.barrier`."""

from __future__ import annotations

import ast

from keepstep.check.sources import Module, absolute

DIST = "torch.distributed"
DCP = "torch.distributed.checkpoint"

# Other places from which the same things can be imported.
_SAME = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch._C._distributed_c10d.", "torch.distributed."),
    ("torch.distributed.checkpoint.state_dict_saver.", "torch.distributed.checkpoint."),
    ("torch.distributed.checkpoint.state_dict_loader.", "torch.distributed.checkpoint."),
    ("torch.distributed._shard.checkpoint.", "torch.distributed.checkpoint."),
    ("torch.serialization.", "torch."),
    ("torch.distributed._tensor.device_mesh.", "torch.distributed.device_mesh."),
    ("torch.distributed.tensor.device_mesh.", "torch.distributed.device_mesh."),
)

_DEEPEST = 8  # re-exports of re-exports; also the end of a circle


class Names:
    """The names of one module, and of the modules of its tree that it imports them from."""

    def __init__(self, module: Module, tree: dict[str, Names]) -> None:
        """Read the imports of ``module``; ``tree`` holds all modules by dotted name."""
        self.tree = tree
        self.stars: list[str] = []
        self.bound: dict[str, str] = {}
        self.assigned: dict[str, str] = {}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                self._imported(node)
            elif isinstance(node, ast.ImportFrom):
                self._imported_from(module, node)
        for statement in module.tree.body:  # dist = torch.distributed
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, value = statement.targets[0], dotted(statement.value)
                if isinstance(target, ast.Name) and value and target.id not in self.bound:
                    self.assigned[target.id] = value

    def _imported(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.bound[name] = alias.name if alias.asname else name

    def _imported_from(self, module: Module, node: ast.ImportFrom) -> None:
        base = absolute(module, node)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
            else:
                self.bound[alias.asname or alias.name] = f"{base}.{alias.name}".lstrip(".")

    def of(self, node: ast.expr) -> str:
        """Return the full dotted name of an expression, "" where it is not one."""
        return self._full(dotted(node), _DEEPEST)

    def _full(self, name: str, depth: int) -> str:
        head, dot, rest = name.partition(".")
        if not head or depth == 0:
            return ""
        if head in self.bound:
            full = self._elsewhere(self.bound[head] + dot + rest, depth)
        elif head in self.assigned and self.assigned[head] != name:
            full = self._full(self.assigned[head] + dot + rest, depth - 1)
        elif self.stars and not dot:
            full = self._from_star(head, depth)
        else:
            full = name
        return canonical(full)

    def _elsewhere(self, full: str, depth: int) -> str:
        """Follow a name into the module of the tree that it was imported from."""
        parts = full.split(".")
        for count in range(len(parts) - 1, 0, -1):
            other = self.tree.get(".".join(parts[:count]))
            if other is not None and other is not self:
                inner = ".".join(parts[count:])
                head = parts[count]
                if head in other.bound or head in other.assigned:
                    return other._full(inner, depth - 1)
                return full
        return full

    def _from_star(self, name: str, depth: int) -> str:
        for base in self.stars:
            other = self.tree.get(base)
            if other is not None and (name in other.bound or name in other.assigned):
                return other._full(name, depth - 1)
            if base.startswith(DIST):
                return f"{base}.{name}"
        return name


def dotted(node: ast.expr | None) -> str:
    """Return ``a.b.c`` for an expression that is only names and attributes, "" for others."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def canonical(name: str) -> str:
    """Return the public spelling of a name of torch."""
    for other, public in _SAME:
        if name.startswith(other):
            return public + name.removeprefix(other)
    return name


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument of a call by its name or position; None where it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and len(call.args) > position:
        found = call.args[position]
        return None if isinstance(found, ast.Starred) else found
    return None


def spreads(call: ast.Call) -> bool:
    """Return whether a call takes arguments that are not written there (``*a``, ``**k``)."""
    return any(isinstance(each, ast.Starred) for each in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )


def is_none(node: ast.expr | None) -> bool:
    """Return whether an argument is left out or written as None."""
    return node is None or (isinstance(node, ast.Constant) and node.value is None)
