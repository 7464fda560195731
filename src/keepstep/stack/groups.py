"""The process groups of the running process: what was asked for, and what was built.

The name alone does not say: ``nccl`` is one class on PyTorch 2.14 and another one on 2.15.
Standard library and torch only, Python 3.10.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from typing import Any

from keepstep.stack.variables import families

_C10D = "torch.distributed.distributed_c10d"

# Builders of torch/distributed/distributed_c10d.py, by what they build.
_BUILT_BY = {
    "_create_gloo_process_group": "ProcessGroupGloo",
    "_create_nccl_process_group": "ProcessGroupNCCL",
    "_create_nccl2_process_group": "ProcessGroupNCCL2",
    "_create_nccl_lazy_process_group": "ProcessGroupNCCLLazy",
    "_create_mpi_process_group": "ProcessGroupMPI",
    "_create_ucc_process_group": "ProcessGroupUCC",
    "_create_xccl_process_group": "ProcessGroupXCCL",
}
# Versions from 2.14 on find these by entry points, and only when a job names one.
_REGISTERED_BY = {
    "_register_builtin_gloo_backend": "ProcessGroupGloo",
    "_register_builtin_nccl_legacy_backend": "ProcessGroupNCCL",
    "_register_builtin_nccl2_backend": "ProcessGroupNCCL2",
    "_register_builtin_nccl_lazy_backend": "ProcessGroupNCCLLazy",
    "_register_builtin_mpi_backend": "ProcessGroupMPI",
    "_register_builtin_ucc_backend": "ProcessGroupUCC",
    "_register_builtin_xccl_backend": "ProcessGroupXCCL",
}
_NCCL_REGISTRAR = "_register_builtin_nccl_backend"  # builds what TORCH_DIST_USE_NCCL2 says
_FAMILIES = {"legacy": "ProcessGroupNCCL", "nccl2": "ProcessGroupNCCL2"}
# What versions have that know neither.
_BUILT_IN = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}

_OPTIONS = ("is_high_priority_stream", "lazy_init", "enable_reconfigure", "threads")
_UNSET = -(1 << 31)  # NCCL's mark of an option that nobody chose

_asked: dict[int, str] = {}  # by the id of a group; groups live as long as c10d keeps them
_seen: list[dict[str, Any]] = []  # every group that was watched, also after it is destroyed
_pending: list[str] = []  # the spelling of a call that is under way


def watch() -> None:
    """From now on keep, for each process group that is made, what was asked for and what was built.

    Without it `groups` sees only groups that still exist, and the spelling that c10d made of the
    one asked for. Calling it twice is the same as once; it needs torch to be imported.
    """
    c10d: Any = sys.modules.get(_C10D)
    if c10d is None or hasattr(c10d._new_process_group_helper, "watched_by_keepstep"):
        return
    c10d._new_process_group_helper = _watched_helper(c10d._new_process_group_helper)
    for name in ("init_process_group", "_new_group_with_tag"):
        _replace(c10d, name, _watched_call(getattr(c10d, name)))


def groups() -> list[dict[str, Any]]:
    """Return every process group of this process, those that `watch` saw and are gone included."""
    c10d = sys.modules.get(_C10D)
    alive = [] if c10d is None else [_describe(c10d, group) for group in c10d._world.pg_map]
    names = {each["name"] for each in alive}
    return [*(each for each in _seen if each["name"] not in names), *alive]


def default_backends() -> dict[str, str]:
    """Return by device type the backend that a job gets which asks for none."""
    backend = sys.modules[_C10D].Backend
    return {device: str(name) for device, name in backend.default_device_backend_map.items()}


def backend_impls() -> dict[str, str]:
    """Return by spelling the class that would be built, or what builds it; registers nothing."""
    c10d: Any = sys.modules[_C10D]
    points = importlib.metadata.entry_points(group="torch.distributed.backends")
    found = {point.name: _resolved(point.value) for point in points}
    if not found:
        found = {name: built for name, built in _BUILT_IN.items() if _available(c10d, name)}
    for name, plugin in c10d.Backend._plugins.items():
        found[name.lower()] = _class_of(plugin.creator_fn)
    return dict(sorted(found.items()))


def _resolved(entry_point: str) -> str:
    """Return the class behind an entry point, which is not loaded: that would register it."""
    module, _, function = entry_point.partition(":")
    if module != _C10D:
        return entry_point if _installed(module) else f"{entry_point} (not installed)"
    if function == _NCCL_REGISTRAR:
        version, lever = sys.modules["torch"].__version__, os.environ.get("TORCH_DIST_USE_NCCL2")
        return _FAMILIES[families("nccl", str(version), lever)[0]]
    return _REGISTERED_BY.get(function, entry_point)


def _installed(module: str) -> bool:
    """Tell whether a module is there, without importing what is not imported yet."""
    parent = module.rpartition(".")[0]
    known = module if parent in sys.modules else module.partition(".")[0]
    return importlib.util.find_spec(known) is not None


def _available(c10d: Any, name: str) -> bool:
    return bool(getattr(c10d, f"is_{name}_available")())


def _class_of(creator: Any) -> str:
    name = getattr(creator, "__name__", type(creator).__name__)
    return _BUILT_BY.get(name, f"{getattr(creator, '__module__', '?')}.{name}")


def _describe(c10d: Any, group: Any) -> dict[str, Any]:
    ranks = c10d._world.pg_group_ranks.get(group, {})
    backends = {device.type: _built(group, device) for device in group._device_types}
    bound = getattr(group, "bound_device_id", None)
    timeouts = [_timeout_s(backend) for backend in backends.values()]
    chosen = {device: _options(backend) for device, backend in backends.items()}
    return {
        "name": str(c10d._world.pg_names.get(group, group.group_name)),
        "ranks": sorted(ranks, key=ranks.__getitem__),
        "asked": _asked.get(id(group), _spelling(c10d, group)),
        "classes": {device: type(backend).__name__ for device, backend in backends.items()},
        "device": None if bound is None else str(bound),
        "timeout_s": min((each for each in timeouts if each is not None), default=None),
        "options": {device: options for device, options in chosen.items() if options},
    }


def _built(group: Any, device: Any) -> Any:
    """Return the backend of a device; with TORCH_DISTRIBUTED_DEBUG=DETAIL one lies around it."""
    backend = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def _spelling(c10d: Any, group: Any) -> str:
    """Return what c10d keeps of the spelling, "" where none was passed."""
    kept = str(c10d._world.pg_map[group][0])
    return "" if kept == "undefined" else kept


def _timeout_s(backend: Any) -> float | None:
    try:
        return float(backend.options._timeout.total_seconds())
    except (AttributeError, RuntimeError, TypeError):
        return None


def _options(backend: Any) -> dict[str, Any]:
    try:
        options = backend.options
    except (AttributeError, RuntimeError):
        return {}
    found = {name: getattr(options, name) for name in _OPTIONS if _plain(options, name)}
    config = getattr(options, "config", None)
    for name in () if config is None else dir(config):
        value = getattr(config, name, None)
        if not name.startswith("_") and isinstance(value, int | str) and value != _UNSET:
            found[f"config.{name}"] = value
    return found


def _plain(options: Any, name: str) -> bool:
    return isinstance(getattr(options, name, None), bool | int | float | str)


def _watched_call(original: Any) -> Any:
    """Note the spelling of a call that makes a group; "" when it passes none."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            backend = signature.bind(*arguments, **options).arguments.get("backend")
        except TypeError:  # the original says what is wrong with the call
            backend = None
        _pending.append("" if backend is None else str(backend))
        try:
            return original(*arguments, **options)
        finally:
            _pending.pop()

    return call


def _watched_helper(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        group = made[0] if isinstance(made, tuple) else made
        _note(group, signature.bind(*arguments, **options).arguments)
        return made

    helper.watched_by_keepstep = True  # type: ignore[attr-defined]
    return helper


def _note(group: Any, arguments: dict[str, Any]) -> None:
    """Keep what a new group is; a job never fails because of it."""
    c10d: Any = sys.modules[_C10D]
    try:
        if group not in c10d._world.pg_map:
            return  # this rank is not a member
        if _pending:
            _asked[id(group)] = _pending[-1]
        # c10d enters the members only later; none are named for the group of the whole world.
        members = arguments["global_ranks_in_group"] or range(arguments["group_size"])
        _seen.append({**_describe(c10d, group), "ranks": list(members)})
    except Exception:
        return


def _replace(module: Any, name: str, made: Any) -> None:
    """Put a function in the place of another, also where modules have imported it by name."""
    original = getattr(module, name)
    for each in list(sys.modules.values()):
        inside = getattr(each, "__name__", "").startswith("torch.distributed")
        if inside and vars(each).get(name) is original:
            setattr(each, name, made)
