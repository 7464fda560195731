"""How groups are made and which device each rank takes (KS1xx)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from keepstep.check.finding import Finding, Severity
from keepstep.check.naming import DIST, argument, is_none, spreads
from keepstep.check.rules import RULES
from keepstep.check.scene import Init, Part, Scene
from keepstep.check.variable_writes import Write, writes

_SET_DEVICE = ("torch.cuda.set_device", "torch.accelerator.set_device_index")
_DESTROY = (f"{DIST}.destroy_process_group", f"{DIST}.shutdown", f"{DIST}.abort_process_group")

COLLECTIVES = tuple(
    f"{DIST}.{name}"
    for name in (
        *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"),
        *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
        *("gather", "scatter", "isend", "irecv", "send", "recv", "barrier", "reduce_scatter_v"),
        *("all_reduce_coalesced", "all_gather_coalesced"),
    )
)


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what the rules KS101 to KS108 find."""
    for init in scene.inits:
        if scene.leap.new >= 15 and scene.nccl(init) and not init.bound and not init.open:
            yield from _unbound(scene, init)
        yield from _unnamed(init)
        yield from _lazy_reconfigure(init)
    if scene.leap.new >= 15 and scene.any_nccl:
        yield from _other_devices(scene)
        if not scene.bound:
            yield from _late_set_device(scene)
            yield from _barriers(scene)
    yield from _several_devices(scene)
    yield from _not_destroyed(scene)


def _unbound(scene: Scene, init: Init) -> Iterator[Finding]:
    chosen = any(part.called(*_SET_DEVICE) and _any(part, _SET_DEVICE) for part in scene.parts)
    how = (
        "torch.cuda.set_device chooses one, which nccl2 does not ask for"
        if chosen
        else "torch.cuda.set_device is not called either"
    )
    severity = Severity.RISK if scene.leap.crosses(15) else Severity.NOTE
    yield RULES["KS101"].at(
        init.part, init.call, f"init_process_group without device_id; {how}", severity=severity
    )


def _any(part: Part, names: tuple[str, ...]) -> bool:
    return next(part.called(*names), None) is not None


def _unnamed(init: Init) -> Iterator[Finding]:
    if init.asked or init.open or init.bound:
        return
    limit = "" if init.timeout else ", and without timeout: 30 minutes"
    yield RULES["KS106"].at(init.part, init.call, f"init_process_group without backend{limit}")


def _lazy_reconfigure(init: Init) -> Iterator[Finding]:
    flag = argument(init.call, "enable_reconfigure")
    if not any("nccl-lazy" in each for each in init.backends) or flag is None:
        return
    if not (isinstance(flag, ast.Constant) and flag.value is False):
        yield RULES["KS107"].at(init.part, init.call, "nccl-lazy together with enable_reconfigure")


def _late_set_device(scene: Scene) -> Iterator[Finding]:
    for init in scene.inits:
        home = init.part.function(init.call)
        for call in init.part.called(*_SET_DEVICE):
            if init.part.function(call) is not home or call.lineno <= init.call.lineno:
                continue
            same = bool(call.args) and is_local_rank(init.part, call.args[0])
            yield RULES["KS102"].at(
                init.part,
                call,
                f"set_device after init_process_group of line {init.call.lineno}"
                + (": LOCAL_RANK, as nccl2 takes it" if same else ""),
                severity=Severity.NOTE if same else Severity.CHANGES,
            )


def is_local_rank(part: Part, node: ast.AST) -> bool:
    """Return whether an expression is plainly the local rank, as torchrun gives it."""
    text = ast.unparse(node).lower()
    if "local_rank" in text or "localrank" in text:
        return True
    if not isinstance(node, ast.Name):
        return False
    for other in ast.walk(part.function(node)):
        if isinstance(other, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == node.id for each in other.targets
        ):
            return "local_rank" in ast.unparse(other.value).lower()
    return False


def _other_devices(scene: Scene) -> Iterator[Finding]:
    """Ranks whose device is not what LOCAL_RANK says, in groups that are not bound."""
    masked = scene.launch.variables.get("CUDA_VISIBLE_DEVICES", "")
    if "RANK" in masked or "PROCID" in masked or "LOCALID" in masked:
        yield from _masked(scene, f"CUDA_VISIBLE_DEVICES={masked} in the launch line", None, None)
    for part in scene.parts:
        for write in writes(part):
            if write.name == "CUDA_VISIBLE_DEVICES" and _of_a_rank(write.value):
                text = f"CUDA_VISIBLE_DEVICES is set to {ast.unparse(write.value)}"
                yield from _masked(scene, text, part, write.node)
            if write.name == "LOCAL_RANK" and not scene.bound:
                yield from _own_local_rank(scene, part, write)


def _own_local_rank(scene: Scene, part: Part, write: Write) -> Iterator[Finding]:
    """A job that gives LOCAL_RANK a meaning of its own, while its groups are not bound."""
    said = ast.unparse(write.value)
    if _is_spawn(write.value) or "device_count()" in said:
        return  # the index of mp.spawn, or what nccl2 would take without LOCAL_RANK
    chosen = [
        (each, call.args[0])
        for each in scene.parts
        for call in each.called(*_SET_DEVICE)
        if call.args
    ]
    same = ast.unparse(_inner(write.value))
    if any(is_local_rank(each, node) or ast.unparse(node) == same for each, node in chosen):
        return
    text = f"LOCAL_RANK is set to {said}, and a group is made without device_id"
    if chosen:
        text += f"; this rank's device is {ast.unparse(chosen[0][1])}"
    severity = Severity.BREAKS if chosen else Severity.RISK
    yield RULES["KS103"].at(part, write.node, text, severity=severity)


def _of_a_rank(node: ast.expr) -> bool:
    text = ast.unparse(node).lower()
    return "rank" in text or "procid" in text or "localid" in text


def _is_spawn(node: ast.expr) -> bool:
    """Return whether the local rank is a plain name: the index that mp.spawn hands over."""
    return isinstance(_inner(node), ast.Name | ast.Constant)


def _inner(node: ast.expr) -> ast.expr:
    """Return what is made a string: x for ``str(x)`` and ``f"{x}"``."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return node.args[0]
    if isinstance(node, ast.JoinedStr) and len(node.values) == 1:
        value = node.values[0]
        return value.value if isinstance(value, ast.FormattedValue) else node
    return node


def _masked(scene: Scene, text: str, part: Part | None, node: ast.AST | None) -> Iterator[Finding]:
    """One visible device per rank: an index by LOCAL_RANK is then out of range."""
    used = _index_by_local_rank(scene)
    if used is None:
        return
    where, call = used
    ending = f", and line {call.lineno} of {where.file} takes the device of LOCAL_RANK"
    if part is None or node is None:
        yield RULES["KS103"].here(text + ending)
    else:
        yield RULES["KS103"].at(part, node, text + ending)


def _index_by_local_rank(scene: Scene) -> tuple[Part, ast.Call] | None:
    for part in scene.parts:
        for call in part.called(*_SET_DEVICE, "torch.device"):
            if any(is_local_rank(part, each) for each in call.args):
                return part, call
    return None


def _several_devices(scene: Scene) -> Iterator[Finding]:
    for part in scene.parts:
        for call in part.called(*COLLECTIVES):
            if not is_none(argument(call, "group")):
                continue  # perhaps one group per device
            for loop in part.above(call):
                if isinstance(loop, ast.FunctionDef | ast.AsyncFunctionDef):
                    break
                if isinstance(loop, ast.For) and _over_devices(loop):
                    yield RULES["KS104"].at(
                        part,
                        call,
                        f"{ast.unparse(call.func)} in a loop over devices (line {loop.lineno}), "
                        "all in the default group",
                    )
                    break


def _over_devices(loop: ast.For) -> bool:
    """Return whether a loop's variable is the index of a CUDA device in its body."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr) and _cuda_of(node, names):
                return True
            if isinstance(node, ast.Call) and _to_device(node, names):
                return True
    return False


def _cuda_of(node: ast.JoinedStr, names: set[str]) -> bool:
    begin = node.values[0] if node.values else None
    if not (isinstance(begin, ast.Constant) and str(begin.value).startswith("cuda:")):
        return False
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _to_device(call: ast.Call, names: set[str]) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    index = call.args[0] if name == "cuda" and call.args else None
    if name == "device" and len(call.args) == 2:
        index = call.args[1]
    return isinstance(index, ast.Name) and index.id in names


def _barriers(scene: Scene) -> Iterator[Finding]:
    for part in scene.parts:
        for call in part.called(f"{DIST}.barrier"):
            if is_none(argument(call, "device_ids", 2)) and is_none(argument(call, "group", 0)):
                chosen = any(_any(each, _SET_DEVICE) for each in scene.parts)
                severity = Severity.NOTE if chosen or spreads(call) else Severity.RISK
                yield RULES["KS105"].at(
                    part, call, "barrier() in a group that no device_id binds", severity=severity
                )


def _not_destroyed(scene: Scene) -> Iterator[Finding]:
    ends = any(
        name in _DESTROY or name.endswith((".destroy_process_group", ".abort_process_group"))
        for part in scene.parts
        for _, name in part.calls
    )
    if not ends:
        for init in scene.inits[:1]:
            yield RULES["KS108"].at(
                init.part, init.call, "a group is made, and destroy_process_group is never called"
            )
