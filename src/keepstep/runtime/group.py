"""The process groups of one worker: made once, given new members many times.

Two backends can change members: gloo and nccl2 (the ``nccl`` of PyTorch 2.15). Their quirks are
kept in this file; what is measured about them is in docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

OPERATION_TIMEOUT = timedelta(minutes=30)  # torch's own default for NCCL; halts never wait for it


@dataclass(slots=True)
class SubGroup:
    """A process group over some ranks; its members change with the generations."""

    ranks: list[int]
    process_group: Any
    active: bool = False  # this process is a member in the present generation


@dataclass(slots=True)
class Groups:
    """The default process group of a worker and the groups made by ``Job.new_group``."""

    backend: str
    device: torch.device
    store: Any
    wid: int
    _subgroups: list[SubGroup] = field(default_factory=list, init=False)
    _sockets: dict[int, str] = field(default_factory=dict, init=False)

    def initialise(self, world_size: int) -> None:
        """Create the default process group, without peers until ``reconfigure``.

        Every process of the job, spares and replacements included, needs an init rank of its own:
        handles hold nothing else that tells two processes apart.
        """
        before = self._peer_sockets()
        device_id = self.device if self.device.type == "cuda" else None
        dist.init_process_group(
            self.backend,
            store=self.store,
            rank=self.wid,
            world_size=max(world_size, self.wid + 1),
            timeout=OPERATION_TIMEOUT,
            device_id=device_id,
            enable_reconfigure=True,
        )
        self._note_sockets(before)

    def has_store(self) -> bool:
        """Return whether the job's store answers; a connection to it that broke stays broken."""
        try:
            self.store.num_keys()
        except RuntimeError:  # every error of torch.distributed is one
            return False
        return True

    def handle(self) -> str:
        """Return what peers need to take this process into a group; it changes every time."""
        return str(dist._get_reconfigure_handle())

    def reconfigure(self, uuid: int, handles: list[str], timeout: float) -> None:
        """Become rank ``handles.index(own handle)`` of a new communicator.

        Raises:
            RuntimeError, DistStoreError: a peer did not come within ``timeout`` seconds; the call
                may be repeated with another ``uuid``.
        """
        before = self._peer_sockets()
        limit = timedelta(seconds=timeout)
        dist._reconfigure(uuid=uuid, handles=handles, timeout=limit).wait()
        # torch keeps the rank map of the first members (2.15.0): get_process_group_ranks is stale.
        world: Any = dist.group.WORLD
        c10d._world.pg_group_ranks[world] = {rank: rank for rank in range(len(handles))}
        self._reconfigure_subgroups(uuid, timeout)
        self._note_sockets(before)

    def _reconfigure_subgroups(self, uuid: int, timeout: float) -> None:
        rank = dist.get_rank()
        for number, group in enumerate(self._subgroups):
            handles: list[Any] = [None] * dist.get_world_size()
            mine = str(dist._get_reconfigure_handle(group.process_group))
            dist.all_gather_object(handles, mine)
            ranks = [each for each in group.ranks if each < len(handles)]
            c10d._world.pg_group_ranks[group.process_group] = {
                each: place for place, each in enumerate(ranks)
            }
            group.active = rank in ranks
            if group.active:
                dist._reconfigure(
                    uuid=uuid * 1000 + number,
                    handles=[handles[each] for each in ranks],
                    group=group.process_group,
                    timeout=timedelta(seconds=timeout),
                ).wait()

    def new_group(self, ranks: Sequence[int]) -> Any:
        """Create a process group over ``ranks`` that gets its members with the next generation.

        Made with an explicit name and without any communication: a spare, which has no rank yet,
        makes it too. ``torch.distributed.new_group`` cannot serve here: its generated names differ
        between survivors and newcomers, and the call would hang.
        """
        name = c10d.GroupName(f"keepstep-{len(self._subgroups)}")
        with _unbound(dist.group.WORLD):
            group, _ = c10d._new_process_group_helper(
                self.wid + 1,
                self.wid,
                [dist.get_rank()],  # torch asks whether this process is a member: it may become one
                c10d.Backend(self.backend),
                self.store,
                group_name=name,
                timeout=OPERATION_TIMEOUT,
                group_desc=name,
                enable_reconfigure=True,
            )
        c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
        self._subgroups.append(SubGroup(list(ranks), group))
        return group

    def sequence(self) -> int:
        """Return how many collectives this process entered on the default group."""
        world: Any = dist.group.WORLD
        with contextlib.suppress(RuntimeError):  # in the middle of a change of members
            return int(world._get_sequence_number_for_group())
        return 0

    def check(self) -> None:
        """Wait for the GPU and raise if a collective in what it did has failed.

        On a GPU a collective returns before it has run. When a peer is lost it ends with garbage in
        the tensor and nothing is raised, so nobody may change the model before this has passed.

        Raises:
            DistBackendError: a communicator is broken.
        """
        if self.device.type != "cuda":
            return
        torch.cuda.current_stream(self.device).synchronize()
        for group in [dist.group.WORLD, *(each.process_group for each in self._active_subgroups())]:
            error = group._get_backend(self.device).get_error()
            if error != ErrorType.SUCCESS:
                raise dist.DistBackendError(f"a collective failed on the GPU: {error}")

    def _active_subgroups(self) -> list[SubGroup]:
        return [group for group in self._subgroups if group.active]

    def unblock(self) -> None:
        """Make every collective in progress fail at once. Called from another thread.

        gloo has no abort that does this, so the connections of its groups are shut down: the
        blocked call raises within milliseconds, here and at the peer. Without it only the direct
        neighbours of a lost rank notice; in a group of 8 the others waited for the operation
        timeout. nccl2 aborts its communicators.
        """
        if self.backend == "gloo":
            self._shut_sockets()
            return
        for group in [dist.group.WORLD, *(each.process_group for each in self._active_subgroups())]:
            with contextlib.suppress(RuntimeError):
                group._get_backend(self.device).abort()

    def _peer_sockets(self) -> dict[int, str]:
        return _tcp_sockets(besides_port=self.store.port)

    def _note_sockets(self, before: dict[int, str]) -> None:
        now = self._peer_sockets()
        kept = {fd: link for fd, link in self._sockets.items() if now.get(fd) == link}
        opened = {fd: link for fd, link in now.items() if before.get(fd) != link}
        self._sockets = {**kept, **opened}

    def _shut_sockets(self) -> None:
        for descriptor, link in self._sockets.items():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{descriptor}") == link:
                    _shut(descriptor)


def _shut(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _tcp_sockets(besides_port: int) -> dict[int, str]:
    """Return descriptor -> inode link of this process's TCP connections, the store's left out."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:") and _peer_port(int(name)) not in (None, besides_port):
                found[int(name)] = link
    return found


def _peer_port(descriptor: int) -> int | None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            return int(connection.getpeername()[1])
        except OSError:
            return None


@contextlib.contextmanager
def _unbound(world: Any) -> Iterator[None]:
    """Hide the device that the default group is bound to.

    With it torch 2.15.0 makes a new group by splitting the default communicator, which does not
    exist before the first generation.
    """
    bound = world.bound_device_id
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An all-reduce that has begun."""

    gradients: list[torch.Tensor]
    flat: torch.Tensor  # all of them, while ``work`` is not done
    views: list[torch.Tensor]  # its parts, in the shapes of the gradients
    work: Any


class GradientAverager:
    """Averages gradients over the default group through one persistent flat buffer a dtype.

    The layout of the buffer never changes, so the order of every floating-point sum depends on
    rank and world size alone: a run with a replaced rank stays bit-identical.
    """

    def __init__(self) -> None:
        """Buffers are made at the first call."""
        self._flat: dict[tuple[torch.dtype, torch.dtype, int], torch.Tensor] = {}

    def average(
        self,
        parameters: Iterable[torch.nn.Parameter],
        weight: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Replace every gradient by its mean over the ranks; ``weight`` scales this rank's share.

        ``weight`` is the rank's number of samples over the mean number of all ranks: 1.0 where all
        have the same. A missing gradient counts as zero. ``meanwhile`` is called while the ranks
        exchange theirs.
        """
        by_kind: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                by_kind.setdefault(parameter.dtype, []).append(parameter)
        begun: list[_Exchange] = []
        try:
            for group in by_kind.values():
                begun.append(self._begin(group, weight))
            meanwhile()
        except BaseException:
            with contextlib.suppress(Exception):
                _wait_for_all(begun)
            raise
        _wait_for_all(begun)
        for exchange in begun:
            exchange.flat.div_(dist.get_world_size())
            torch._foreach_copy_(exchange.gradients, exchange.views)

    def _begin(self, parameters: list[torch.nn.Parameter], weight: float) -> _Exchange:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        total = sum(gradient.numel() for gradient in gradients)
        key = (parameters[0].dtype, gradients[0].dtype, total)
        flat = self._flat.setdefault(key, gradients[0].new_empty(total))
        views = _views(flat, gradients)
        torch._foreach_copy_(views, gradients)
        if weight != 1.0:
            flat.mul_(weight)
        return _Exchange(gradients, flat, views, dist.all_reduce(flat, async_op=True))


def _wait_for_all(begun: Sequence[_Exchange]) -> None:
    """Wait until none writes into its buffer any more, which the next generation uses again.

    Raises:
        RuntimeError: what the first of those that failed raised.
    """
    errors = []
    for exchange in begun:
        try:
            exchange.work.wait()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _views(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
