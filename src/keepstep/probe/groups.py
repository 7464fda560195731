"""Process groups: what was asked for, what was built, how long it took and what it cost."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from keepstep.probe.memory import current_device, device_used
from keepstep.probe.record import SeenGroup, note_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from keepstep.probe.record import Record

_PLAIN = (str, int, float, bool, type(None))


class Groups:
    """Follows the process groups of this rank."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._seen: dict[int, tuple[Any, SeenGroup]] = {}  # by id; the group is held, so it stays
        self._not_counted: dict[int, int] = {}  # operations of the probe, by id of the group

    def created(
        self, dist: Any, make: Callable[[], Any], *, asked: str, whole: bool
    ) -> tuple[Any, float]:
        """Make a group and note it.

        Args:
            dist: ``torch.distributed.distributed_c10d``.
            make: Makes it.
            asked: The backend's spelling, "" when none was given.
            whole: It is the default group, which ``make`` does not return.

        Returns:
            What ``make`` returned, and the seconds that it took.
        """
        memory, began = device_used(), time.perf_counter()
        result = make()
        seconds, after = time.perf_counter() - began, device_used()
        taken = after - memory if after is not None and memory is not None else None
        try:
            group = dist._get_default_group() if whole else result
            if group is not None and not _is_foreign(dist, group):
                self._note(dist, group, asked, seconds, taken)
        except Exception:
            note_failure(self._record, "group")
        return result, seconds

    def _note(self, dist: Any, group: Any, asked: str, seconds: float, memory: int | None) -> None:
        impls = _impls(group)
        seen = SeenGroup(
            name=str(getattr(group, "group_name", "") or dist._get_process_group_name(group)),
            ranks=list(dist.get_process_group_ranks(group)),
            asked=asked,
            classes={device: type(impl).__name__ for device, impl in impls.items()},
            device=_text(getattr(group, "bound_device_id", None)),
            timeout_s=_timeout(impls),
            options=_options(impls),
            create_s=seconds,
            memory_bytes=memory,
        )
        self._seen[id(group)] = (group, seen)
        self._record.groups.append(seen)

    def count(self, dist: Any, group: Any) -> None:
        """Count one operation that the job started on a group, None for the default one."""
        if group is None:
            group = dist.GroupMember.WORLD
        pair = self._seen.get(id(group))
        if pair is not None:
            pair[1].calls += 1

    def bind(self) -> None:
        """Note the device that is set by now for the groups of NCCL that say none.

        An older class finds its device when it is first used; by then it is this one.
        """
        device = current_device()
        for _, seen in self._seen.values():
            if seen.device is None and "NCCL" in seen.classes.get("cuda", ""):
                seen.device = device

    def forget_calls(self, group: Any) -> None:
        """Leave out what was started on the group so far: it was the probe."""
        self._not_counted[id(group)] = _sequence(group)

    def count_all(self) -> None:
        """Take the groups' own counts where these are higher: C++ starts operations too (DDP)."""
        for key, (group, seen) in self._seen.items():
            started = _sequence(group) - self._not_counted.get(key, 0)
            seen.calls = max(seen.calls, started)

    def not_destroyed(self) -> list[str]:
        """Return the groups that are still there."""
        return [f"group {seen.name}, not destroyed" for _, seen in self._seen.values()]

    def let_go(self, group: Any = None) -> None:
        """Hold a group, or all of them, no longer: the job's destroy is to free them."""
        if group is None:
            self._seen.clear()
        else:
            self._seen.pop(id(group), None)


def _is_foreign(dist: Any, group: Any) -> bool:
    member = getattr(dist.GroupMember, "NON_GROUP_MEMBER", None)
    return group is member or (isinstance(group, int) and not isinstance(group, bool))


def _impls(group: Any) -> dict[str, Any]:
    """Return what was built for each device type."""
    return {device.type: group._get_backend(device) for device in group._device_types}


def _timeout(impls: dict[str, Any]) -> float | None:
    for impl in impls.values():
        limit = getattr(getattr(impl, "options", None), "_timeout", None)
        if isinstance(limit, timedelta):
            return limit.total_seconds()
    return None


def _options(impls: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for device, impl in impls.items():
        options = getattr(impl, "options", None)
        for name in dir(options) if options is not None else ():
            value = getattr(options, name, None)
            if not name.startswith("_") and isinstance(value, _PLAIN):
                found[f"{device}.{name}"] = value
    return found


def _sequence(group: Any) -> int:
    """Return how many collectives were started on a group; 0 where it does not say."""
    try:
        return max(int(impl._get_sequence_number_for_group()) for impl in _impls(group).values())
    except Exception:
        return 0


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
