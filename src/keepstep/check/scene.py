"""The parsed job as the rules see it: modules, parents of nodes, groups that are initialised."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from keepstep.check.launch import Launch
from keepstep.check.leap import Leap
from keepstep.check.naming import DIST, Names, argument, is_none, spreads
from keepstep.check.sources import Module, Sources

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | ast.Lambda


class Part:
    """One module with its names and the parents of its nodes."""

    def __init__(self, module: Module, tree: dict[str, Names]) -> None:
        """Prepare ``module``; ``tree`` is filled with its names."""
        self.file = module.file
        self.tree = module.tree
        self.names = Names(module, tree)
        tree[module.name] = self.names

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node, in the order of ast.walk."""
        return list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Each node's parent."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call, with the full name of what it calls ("" for others)."""
        found = (node for node in self.nodes if isinstance(node, ast.Call))
        return [(call, self.names.of(call.func)) for call in found]

    def called(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of one of these full names."""
        return (call for call, name in self.calls if name in names)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function(self, node: ast.AST) -> Function:
        """Return the function, or the module, that a node belongs to."""
        for each in self.above(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return each
        return self.tree

    @cached_property
    def strings(self) -> dict[str, set[str]]:
        """Names that are only ever given constant strings, and these."""
        found: dict[str, set[str]] = {}
        other: set[str] = set()
        for node in self.nodes:
            for name, value in _given(node):
                texts = _constants(value)
                if texts is None:
                    other.add(name)
                else:
                    found.setdefault(name, set()).update(texts)
        return {name: texts for name, texts in found.items() if name not in other}

    @cached_property
    def tables(self) -> dict[str, ast.Dict]:
        """Names that are given one dict, written there."""
        given = [pair for node in self.nodes for pair in _given(node)]
        names = [name for name, _ in given]
        return {
            name: value
            for name, value in given
            if isinstance(value, ast.Dict) and names.count(name) == 1
        }

    @cached_property
    def options(self) -> dict[str, ast.Call]:
        """Options of the command line by the name of their attribute."""
        found = {}
        for call, _ in self.calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
                continue
            spelled = [a.value for a in call.args if isinstance(a, ast.Constant)]
            texts = [text for text in spelled if isinstance(text, str)]
            target = argument(call, "dest")
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                found[target.value] = call
            elif texts:
                long = next((text for text in texts if text.startswith("--")), texts[0])
                found[long.lstrip("-").replace("-", "_")] = call
        return found


def _given(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(each.id, node.value) for each in node.targets if isinstance(each, ast.Name)]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
        return [(node.target.id, node.value)] if node.value is not None else []
    if isinstance(node, ast.arguments):
        late = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
        pairs = [*zip(late, node.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d]
        return [(name.arg, value) for name, value in pairs]
    return []


def _constants(node: ast.expr) -> set[str] | None:
    """Return the strings that an expression can be; None where others are possible."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        both = _constants(node.body), _constants(node.orelse)
        return both[0] | both[1] if both[0] is not None and both[1] is not None else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """One call that makes the default group."""

    part: Part
    call: ast.Call
    backends: frozenset[str]  # spellings that it can be given; empty: not known
    source: str  # where these come from; "" where they are not known
    asked: bool  # whether a backend is passed at all
    bound: bool  # to a device
    timeout: bool  # whether one is passed
    open: bool  # takes arguments that are not written there


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that the rules look at."""

    leap: Leap
    launch: Launch
    parts: tuple[Part, ...]  # the script's first
    inits: tuple[Init, ...]
    cuda: bool  # whether the code names CUDA at all
    environment: dict[str, str] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()  # installed packages that the code imports

    def nccl(self, init: Init) -> bool:
        """Return whether a group can be one of NCCL."""
        if init.backends:
            return any("nccl" in each for each in init.backends)
        return self.cuda

    @property
    def any_nccl(self) -> bool:
        """Return whether any group can be one of NCCL; one made elsewhere can if CUDA is named."""
        return any(map(self.nccl, self.inits)) if self.inits else self.cuda

    @property
    def bound(self) -> bool:
        """Return whether every group of NCCL is bound to a device when it is made."""
        return all(init.bound or init.open for init in self.inits if self.nccl(init))

    @property
    def spelling(self) -> str:
        """The backend of the job, as far as it is written: for the variables."""
        spelled = sorted({each for init in self.inits for each in init.backends})
        nccl = [each for each in spelled if "nccl" in each]
        if nccl or spelled:
            return (nccl or spelled)[0]
        return "nccl" if self.cuda or not self.inits else "gloo"


def see(sources: Sources, leap: Leap, launch: Launch, environment: dict[str, str]) -> Scene:
    """Return the scene of a job."""
    tree: dict[str, Names] = {}
    parts = tuple(Part(module, tree) for module in sources.modules)
    inits = tuple(
        _init(part, call, launch)
        for part in parts
        for call in part.called(f"{DIST}.init_process_group")
    )
    return Scene(
        leap=leap,
        launch=launch,
        parts=parts,
        inits=inits,
        cuda=any(map(_names_cuda, parts)),
        environment=environment,
        foreign=sources.foreign,
    )


def _init(part: Part, call: ast.Call, launch: Launch) -> Init:
    backend = argument(call, "backend", 0)
    backends, source = _spellings(part, backend, launch)
    return Init(
        part=part,
        call=call,
        backends=frozenset(text.lower() for text in backends),
        source=source if backends else "",
        asked=not is_none(backend),
        bound=not is_none(argument(call, "device_id")),
        timeout=not is_none(argument(call, "timeout", 2)),
        open=spreads(call),
    )


def _spellings(part: Part, node: ast.expr | None, launch: Launch) -> tuple[set[str], str]:
    """Return the backend names that an expression can be, and where they come from.

    Empty where that is not known.
    """
    written = "as it is written"
    if node is None:
        return set(), ""
    if (texts := _constants(node)) is not None:
        return texts, written
    if isinstance(node, ast.Name) and node.id in part.strings:
        return part.strings[node.id], f"{written} for {node.id}"
    if part.names.of(node).startswith(f"{DIST}.Backend."):
        return {part.names.of(node).rpartition(".")[2]}, written
    name = node.attr if isinstance(node, ast.Attribute) else ""
    name = node.id if isinstance(node, ast.Name) else name
    option = f"--{name.replace('_', '-')}"
    if name in launch.options:
        given = launch.options[name]
        return {given} if given else set(), f"by {option} in the launch line"
    if name in part.options:
        default = argument(part.options[name], "default")
        found = (_constants(default) or set()) if default else set()
        return found, f"the script's default of {option}, which the launch line does not give"
    return set(), ""


def _names_cuda(part: Part) -> bool:
    for node in part.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "cuda":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text == "cuda" or text.startswith("cuda:") or text.endswith(":nccl"):
                return True
    return False
