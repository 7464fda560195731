"""Watches the functions of torch.distributed: replaces each in the module that defines it."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any

from keepstep.probe import sweep
from keepstep.probe.record import note_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from keepstep.probe.groups import Groups
    from keepstep.probe.record import Record

COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_single", "all_gather_into_tensor", "all_gather_coalesced"),
    *("gather", "gather_single", "gather_into_tensor", "scatter", "all_to_all"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "all_to_all_single"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
POINT_TO_POINT = (
    *("send", "recv", "isend", "irecv", "batch_isend_irecv"),
    *("send_object_list", "recv_object_list"),
)
_MOST_TIMED = 1000  # calls of one function; the others are counted only
_ASYNCHRONOUS = {"isend", "irecv", "batch_isend_irecv"}


class _Inside(threading.local):
    """How deep a thread is in watched functions: only what the job calls itself counts."""

    depth = 0


class Calls:
    """Replaces the functions and counts their calls."""

    def __init__(
        self, record: Record, groups: Groups, *, with_sweep: bool, ready: Callable[[], None]
    ) -> None:
        self._record, self._groups = record, groups
        self._with_sweep, self._ready = with_sweep, ready
        self._inside = _Inside()
        self._timed: dict[str, int] = {}  # calls by function
        self._sweep_due = False

    def watch(self, dist: Any, _: float = 0.0) -> None:
        """Replace the functions of ``torch.distributed.distributed_c10d``."""
        self._dist = dist
        self._watch_groups()
        for name in (*COLLECTIVES, *POINT_TO_POINT):
            original = getattr(dist, name, None)
            if original is not None:
                setattr(dist, name, self._watched(name, original))
        for name in ("new_group", "split_group"):
            original = getattr(dist, name, None)
            if original is not None:
                setattr(dist, name, self._watched_creation(original))
        dist.init_process_group = self._watched_init(dist.init_process_group)
        dist.destroy_process_group = self._watched_destroy(dist.destroy_process_group)

    def _watch_groups(self) -> None:
        """Let the fingerprint see groups as they are made; it works without that, less exactly."""
        try:
            from keepstep.stack import groups

            groups.watch()
        except Exception:
            note_failure(self._record, "fingerprint of groups")

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if _compiling() or self._inside.depth:
                return original(*args, **kwargs)
            if self._sweep_due and name in COLLECTIVES and self._of_all_ranks(args, kwargs):
                self._sweep_on(args, kwargs)
            self._inside.depth += 1
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - began
                self._inside.depth -= 1
                try:  # and not guarded(): a context manager takes as long as the rest of it
                    self._note(name, args, kwargs, seconds)
                except Exception:
                    note_failure(self._record, name)

        return watched

    def _of_all_ranks(self, args: Any, kwargs: Any) -> bool:
        group = self._group_of(args, kwargs)
        return group is None or group is self._dist.GroupMember.WORLD

    def _group_of(self, args: Any, kwargs: Any) -> Any:
        group = kwargs.get("group")
        if group is None:
            kind = self._dist.ProcessGroup
            group = next((each for each in args if isinstance(each, kind)), None)
        return group

    def _note(self, name: str, args: Any, kwargs: Any, seconds: float) -> None:
        """Count a call, and keep what it took where that is the time of the operation."""
        group = self._group_of(args, kwargs)
        if name == "batch_isend_irecv":
            operations = args[0] if args else kwargs.get("p2p_op_list")
            group = operations[0].group if operations else None
        self._groups.count(self._dist, group)
        if name in _ASYNCHRONOUS or kwargs.get("async_op"):
            return
        timed = self._timed[name] = self._timed.get(name, 0) + 1
        if timed > _MOST_TIMED:
            return
        size, on_device = _payload((*args, *kwargs.values()))
        if on_device:
            return  # the call returns when it is queued, so its time says nothing
        if self._record.first_collective_s is None and name in COLLECTIVES:
            self._record.first_collective_s = seconds
        self._record.add_latency(f"job {name}", size, seconds)

    def _watched_creation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._inside.depth:
                return original(*args, **kwargs)
            asked = kwargs.get("backend") or (args[2] if len(args) > 2 else None)
            self._inside.depth += 1
            try:
                made, _ = self._groups.created(
                    self._dist,
                    lambda: original(*args, **kwargs),
                    asked=asked if isinstance(asked, str) else "",
                    whole=False,
                )
            finally:
                self._inside.depth -= 1
            self._record.write_soon()
            return made

        return watched

    def _watched_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            asked = kwargs.get("backend") or (args[0] if args else None)
            self._inside.depth += 1
            try:
                result, seconds = self._groups.created(
                    self._dist,
                    lambda: original(*args, **kwargs),
                    asked=asked if isinstance(asked, str) else "",
                    whole=True,
                )
            finally:
                self._inside.depth -= 1
            if self._record.init_s is None:
                self._record.init_s = seconds
            with self._record.own_time():
                self._ready()
                self._record.write()
                # Such a group has no members before the first reconfigure.
                if self._with_sweep and not kwargs.get("enable_reconfigure"):
                    self._sweep_on((), {})
            return result

        return init_process_group

    def _sweep_on(self, args: Any, kwargs: Any) -> None:
        """Sweep now if the device is known, else before the first collective, which shows it."""
        tensors = [*args, *kwargs.values()]
        device = sweep.device(self._dist, tensors)
        self._sweep_due = device is None and not tensors
        if device is None:
            return
        self._sweep_due = False
        group = self._dist.GroupMember.WORLD
        self._inside.depth += 1
        try:
            with self._record.own_time():
                sweep.run(self._dist, device, self._record)
        except Exception:
            note_failure(self._record, "sweep")
        finally:
            self._inside.depth -= 1
        self._groups.forget_calls(group)
        self._record.write()

    def _watched_destroy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def destroy_process_group(group: Any = None) -> Any:
            self._groups.count_all()
            whole = group is None or group is self._dist.GroupMember.WORLD
            if not whole:
                self._groups.let_go(group)
                return original(group)
            self._groups.let_go()
            began = time.perf_counter()
            try:
                return original(group)
            finally:
                self._record.about["destroy_s"] = time.perf_counter() - began

        return destroy_process_group


def _compiling() -> bool:
    """Return whether torch.compile is tracing: then it is to see the function itself."""
    import torch

    return torch.compiler.is_compiling()


def _payload(values: tuple[Any, ...]) -> tuple[int, bool]:
    """Return the bytes of the largest tensor or list of tensors, and whether on a device."""
    import torch

    largest, on_device = 0, False
    for value in values:
        if isinstance(value, torch.Tensor):
            size, several = value.numel() * value.element_size(), [value]
        elif isinstance(value, (list, tuple)):
            several = [each for each in value if isinstance(each, torch.Tensor)]
            size = sum(each.numel() * each.element_size() for each in several)
        else:
            continue
        if several:
            largest, on_device = max(largest, size), on_device or several[0].device.type != "cpu"
    return largest, on_device
