"""One supervised worker: generations, the step loop, commits, recovery.

The training thread owns everything here; the side thread (``link``) only delivers orders and makes
blocked collectives fail. A step that raises, for whatever reason, leads to ``_recover``: wait for
the coordinator's halt, say what this worker holds, enter the next generation, go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.checkpoint_plan import Checkpoint
from keepstep.runtime.config import WorkerConfig, transport_asked
from keepstep.runtime.exchange import Offer, fetch_payload, fetch_state
from keepstep.runtime.failures import origin_of
from keepstep.runtime.group import Groups
from keepstep.runtime.inject import Injector
from keepstep.runtime.link import AgentLink
from keepstep.runtime.progress import Phase, ProgressRecord, Slot
from keepstep.runtime.replicas import payload_parts
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.snapshots import KEPT
from keepstep.runtime.state import Encoded, State, digest_of
from keepstep.runtime.transfer import ByteServer, TransferError, client
from keepstep.runtime.witness import testify

if TYPE_CHECKING:
    from keepstep.runtime.checkpoints import Checkpoints, Outcome
    from keepstep.runtime.one_sided import Endpoints, Giver

ENDPOINTS_WITHIN = 30.0  # seconds; they are made while the script builds its model


class HaltedError(Exception):
    """An order to leave the generation arrived while the worker waited for something else."""


class FinishedError(Exception):
    """The job is complete."""


class Supervision:
    """The worker's side of ``keepstep run``."""

    def __init__(self, config: WorkerConfig) -> None:
        """Connect to agent and store, create the process group, announce ``join``."""
        self.config = config
        self.generation = 0
        self.progress = ProgressRecord.attach(Path(config.progress))
        self.progress.life.hold()
        self._vault = Path(config.vault)
        self.groups = self._create_groups()
        self._link = AgentLink(
            socket.socket(fileno=config.link),
            self.progress,
            on_halt=self.groups.unblock,
            sequence=self.groups.sequence,
            testify=self._testify if config.testifies else None,
        )
        self._link.send(p.Joined(wid=config.wid, torch=torch.__version__))
        self._records = vault.RankRecordWriter(self._vault, config.wid)
        self._samples = SampleNotes()
        self._endpoints = self._make_endpoints()
        self._offer = Offer(receivers=0, giver=_giver(self._endpoints))
        self._server = ByteServer(config.host, config.secret, self._provide)
        self._injector = Injector(list(config.injections), self._announce, self._flip_bit)
        self._busy_began = self._collective_began = 0.0
        self._waited = 0.0
        self._entry: tuple[int, bytes] = (-1, b"")
        self._last_record = b""
        self._committed = 0
        self._in_step = -1
        self._entry_is_exact = False
        self._snapshot_from, self._snapshot_every = 0, 0
        self._snapshots: list[int] = []

    def _create_groups(self) -> Groups:
        config = self.config
        device = torch.device("cpu")
        if config.backend == "nccl":
            device = _own_gpu(config.wid)
        store = dist.TCPStore(config.store_host, config.store_port, is_master=False)
        groups = Groups(backend=config.backend, device=device, store=store, wid=config.wid)
        groups.initialise(config.world_size)
        return groups

    def _testify(self, generation: int) -> None:
        testify(self._vault, self.config.wid, generation, self.config.backend)

    _endpoints: Endpoints | None = None

    def _make_endpoints(self) -> Endpoints | None:
        """Begin to make what one-sided transfers need, if this run asks for them."""
        if transport_asked(os.environ) != "nixl":
            return None
        from keepstep.runtime import one_sided

        if not one_sided.is_installed():
            print("keepstep: nixl is not installed; state moves over TCP", file=sys.stderr)
            return None
        is_member_later = self.config.wid >= self.config.world_size
        return one_sided.Endpoints(one_sided.READ_ENDPOINTS if is_member_later else 0)

    def _announce(self, index: int, step: int) -> None:
        self._link.send(p.Fired(wid=self.config.wid, index=index, step=step))

    def _provide(self, name: str) -> list[bytes | memoryview] | None:
        return self._offer.provide(name)

    # --- called from inside the step ------------------------------------------------------------

    def note_samples(self, step: int, positions: range, batch: int) -> None:
        """Note which samples this rank uses of the ``batch`` of a step."""
        self._samples.note(self.generation, step, positions, batch)

    def note_entry(self) -> None:
        """Leave the per-rank state with the agent, should this rank die before it commits."""
        if self._state is not None:
            data = self._capture_record()
            self._entry = (self._in_step + 1, data)
            self._records.write(self._in_step + 1, is_commit=False, data=data)

    def _capture_record(self) -> bytes:
        assert self._state is not None
        return vault.join_record(self._samples.runs, self._state.capture_rank())

    def enter_collective(self) -> None:
        """Publish that the training thread waits for others from now on."""
        self._be_slow()
        self.note_entry()
        self._collective_began = time.monotonic()
        self.progress.enter(Phase.COLLECTIVE)

    def leave_collective(self) -> None:
        """Publish that it goes on by itself."""
        self._check()
        self._waited += time.monotonic() - self._collective_began
        self.progress.enter(Phase.STEP)

    def _check(self) -> None:
        """Raise if what the collectives of this step returned must not be used.

        Raises:
            DistBackendError: a collective failed on the GPU.
            HaltedError: the generation is being left; an aborted collective returns garbage.
        """
        self.groups.check()
        halt = self._link.halt
        if halt is not None and halt.generation > self.generation and halt.at_step is None:
            raise HaltedError

    def _be_slow(self) -> None:
        """Carry out ``slow``: stretch the time that this rank has spent on the step so far."""
        if self._injector.slowness > 1.0:
            own = time.monotonic() - self._busy_began - self._waited
            time.sleep(own * (self._injector.slowness - 1.0))

    def _flip_bit(self) -> None:
        assert self._state is not None
        modules = [m for m in self._state.replicated.values() if isinstance(m, torch.nn.Module)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        largest = max(parameters, key=lambda parameter: parameter.numel())
        # Through .data, which has a version counter of its own: memory that changes by itself
        # leaves no trace in torch's books either. Bit 3 of the last byte but one is in the upper
        # half of the mantissa: a lower one could vanish in the rounding of the next update.
        values = largest.data.view(-1)
        place = values.numel() // 2
        raw = values[place : place + 1].view(torch.uint8)
        raw[max(0, raw.numel() - 2)] ^= 8

    # --- the loop -------------------------------------------------------------------------------

    _state: State | None = None

    def train(
        self,
        step: Callable[[int], None],
        state: State,
        steps: int,
        begin: Callable[[], None],
        warm_up: Callable[[], None] | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Run the steps; ``begin`` is called at the start of every generation."""
        self._state, self._step, self._steps, self._begin = state, step, steps, begin
        self._warm_up(warm_up)
        start = self._load_checkpoint(checkpoint)
        state.guard = self._check
        state.mark_clean()
        encoded = state.encode_replicated()
        self.progress.enter(Phase.WAITING)
        if self._endpoints is not None:
            # Making them opens TCP connections; during a change of members these would be taken
            # for connections of gloo. None begins before this worker has said that it is ready.
            self._endpoints.wait(ENDPOINTS_WITHIN)
        address = f"{self.config.host}:{self._server.port}"
        self._link.send(
            p.Ready(
                wid=self.config.wid,
                handle=self.groups.handle(),
                steps=steps,
                digest=digest_of(encoded.manifest()),
                address=address,
                start=start,
            )
        )
        self._last_record = self._capture_record()
        self._records.write(max(0, start), is_commit=True, data=self._last_record)
        try:
            self._enter_next(encoded)
            while True:
                self._run_generation()
        except FinishedError:
            self.progress.enter(Phase.LEFT)
            if self.generation == 0:
                sys.exit(0)  # a spare that was never needed

    _checkpoints: Checkpoints | None = None

    def _load_checkpoint(self, plan: Checkpoint | None) -> int:
        """Return the step of the checkpoint that was loaded, 0 for none, -1 if none was sought."""
        assert self._state is not None
        if plan is None:
            return 0
        from keepstep.runtime.checkpoints import Checkpoints  # takes a second to import

        self._checkpoints = Checkpoints(plan, self._state, self._steps, self._tell_checkpoint)
        rank = int(os.environ["RANK"])
        # Others come later, or as spares: they receive the state of those who have a rank.
        return self._checkpoints.resume(rank) if rank < self.config.world_size else -1

    def _tell_checkpoint(self, outcome: Outcome) -> None:
        self._link.send(p.Checkpointed(wid=self.config.wid, **dataclasses.asdict(outcome)))

    def _rank_state(self) -> bytes:
        return vault.state_in(self._last_record)

    def _warm_up(self, own: Callable[[], None] | None) -> None:
        """Make this process ready for its first step; leave no trace in its state."""
        assert self._state is not None
        if own is None:
            return
        rank_state = self._state.capture_rank()
        before = digest_of(self._state.encode_replicated().manifest())
        own()
        if digest_of(self._state.encode_replicated().manifest()) != before:
            raise ValueError(
                "train(warm_up=...) changed the replicated state; it may run a forward and a "
                "backward, but no optimizer step and nothing that updates buffers"
            )
        for item in self._state.replicated.values():
            if isinstance(item, torch.nn.Module):
                item.zero_grad(set_to_none=True)
        self._state.restore_rank(rank_state)

    def _run_generation(self) -> None:
        try:
            while self._committed < self._steps:
                self._stop_at_boundary()
                self._run_step(self._committed)
            if self._checkpoints is not None:
                self.progress.enter(Phase.WAITING)
                self._checkpoints.finish(self._rank_state, self._stop_at_boundary)
            self._announce_done()
            self._obey(self._link.wait_order())
        except FinishedError:
            raise
        except Exception as error:  # whatever a step raises is a fault to survive
            self._recover(error)

    def _obey(self, order: p.Message) -> None:
        if isinstance(order, p.Finish):
            raise FinishedError
        if isinstance(order, p.Halt):
            raise HaltedError

    def _stop_at_boundary(self) -> None:
        halt = self._link.halt
        if halt is None or halt.generation <= self.generation:
            return
        if halt.at_step is None or halt.at_step <= self._committed:
            raise HaltedError

    def _run_step(self, number: int) -> None:
        began = time.monotonic_ns()
        self._busy_began, self._waited, self._in_step = began / 1e9, 0.0, number
        self.progress[Slot.STEP] = number
        self.progress.enter(Phase.STEP)
        self._injector.at_step(number, dist.get_rank())
        self._step(number)
        if self._waited == 0.0:
            self._be_slow()
        self._commit(number + 1, began)

    def _commit(self, count: int, began: int) -> None:
        assert self._state is not None
        # No look at halts here: the state has changed, a halt from now on finds a complete step.
        self.groups.check()
        self.progress.enter(Phase.COMMIT)
        record = self._capture_record()
        self._records.write(count, is_commit=True, data=record)
        self._entry_is_exact = self._entry == (count, record)
        self._last_record = record
        self._state.mark_clean()
        elapsed = time.monotonic_ns() - began
        self.progress[Slot.STEP_NS] = elapsed
        self.progress[Slot.BUSY_NS] = elapsed - int(self._waited * 1e9) if self._waited else 0
        self._committed = count
        self.progress[Slot.COMMITTED] = count
        if count == self._first_count:
            self._link.send(
                p.Resumed(wid=self.config.wid, generation=self.generation, committed=count, ago=0.0)
            )
        self._maybe_snapshot(count)
        if self._checkpoints is not None:
            self._checkpoints.committed(count, self._rank_state)

    # --- snapshots ------------------------------------------------------------------------------

    def _maybe_snapshot(self, count: int) -> None:
        order = self._link.snapshot_every
        if order is not None and count >= order.from_step:
            self._snapshot_every = order.every
            self._link.snapshot_every = None
        if self._snapshot_every and count % self._snapshot_every == 0 and count < self._steps:
            self._take_snapshot(count)

    def _take_snapshot(self, count: int) -> None:
        assert self._state is not None
        began = time.monotonic()
        encoded = self._state.encode_replicated()
        manifest = encoded.manifest()
        rank = dist.get_rank()
        # First and last rank keep the replicated state (two hosts where there are two); every rank
        # keeps its own record and says its digest.
        keeps = rank in (0, dist.get_world_size() - 1)
        own = f"snapshot/{count}/rank/{self.config.wid}"
        vault.write_blob(self._vault, own, [self._last_record])
        if keeps:
            parts = payload_parts(encoded, manifest)
            vault.write_blob(self._vault, f"snapshot/{count}/payload", parts)
        self._snapshots = [*(c for c in self._snapshots if c < count), count][-KEPT:]
        if keeps:
            vault.drop_snapshots(self._vault, keep=set(self._snapshots))
        self._link.send(
            p.SnapshotTaken(
                wid=self.config.wid,
                rank=rank,
                committed=count,
                digest=digest_of(manifest),
                payload=keeps,
                seconds=time.monotonic() - began,
            )
        )

    # --- recovery -------------------------------------------------------------------------------

    def _recover(self, error: Exception) -> None:
        self.progress.enter(Phase.WAITING)
        halt = self._link.halt
        is_halted = halt is not None and halt.generation > self.generation and halt.at_step is None
        origin = origin_of(error)
        is_order = isinstance(error, HaltedError)  # obeyed at a boundary: nothing has failed
        if not is_order and (not is_halted or origin in p.FATAL):
            self._report_failure(error, origin)
        self._enter_next(None)

    def _report_failure(self, error: Exception, origin: str) -> None:
        if origin != "collective":
            _print_traceback(error)
        self._link.send(
            p.StepFailed(
                wid=self.config.wid,
                generation=self.generation,
                step=self._in_step,
                error=f"{type(error).__name__}: {error}"[:1000],
                origin=origin,
            )
        )

    def _enter_next(self, first: Encoded | None) -> None:
        """Obey orders until this worker is a member of a generation (or the job is complete)."""
        encoded = first
        while True:
            halt = self._link.halt
            if halt is not None and halt.generation > max(self.generation, self._proposed):
                encoded = self._propose(halt.generation)
            order = self._link.wait_order()
            if isinstance(order, p.Finish):
                raise FinishedError
            if (
                isinstance(order, p.Form)
                and self.config.wid in order.members
                and not self._is_superseded(order)
                and self._enter(order, encoded)
            ):
                return

    _proposed = 0

    def _is_superseded(self, form: p.Form) -> bool:
        halt = self._link.halt
        return halt is not None and halt.generation > form.generation

    def _propose(self, generation: int) -> Encoded | None:
        """Undo what the interrupted step did to this rank alone and say what is left."""
        assert self._state is not None
        self._proposed = generation
        for item in self._state.replicated.values():
            if isinstance(item, torch.nn.Module):
                item.zero_grad(set_to_none=True)
        clean = self._state.is_clean() and not self._torn
        encoded = self._state.encode_replicated() if clean else None
        digest = digest_of(encoded.manifest()) if encoded is not None else ""
        entry = self._committed
        if self._entry_is_exact and self._entry[0] == self._committed + 1:
            entry += 1
        self._state.restore_rank(vault.state_in(self._last_record))
        self._link.send(
            p.Proposal(
                wid=self.config.wid,
                generation=generation,
                committed=self._committed,
                clean=clean,
                digest=digest,
                handle=self.groups.handle(),
                entry=entry,
                member=self.generation > 0,
            )
        )
        return encoded

    def _enter(self, form: p.Form, encoded: Encoded | None) -> bool:
        """Become a member of the generation that ``form`` describes; False if that failed."""
        self.progress.enter(Phase.FORMING)
        self._injector.fired.update(form.fired)
        rank = form.members.index(self.config.wid)
        if form.generation > 1:
            self._injector.at_recovery(form.start_step, rank)
        seconds: dict[str, float] = {}
        try:
            with _timed(seconds, "reconfigure"):
                self.groups.reconfigure(form.uuid, form.handles, form.timeout)
            with _timed(seconds, "state"):
                self._exchange_state(form, rank, encoded)
            self._become_member(form)
            with _timed(seconds, "begin"):
                self._begin()
        except Exception as error:  # a peer may vanish at any point of this
            self.progress.enter(Phase.WAITING)
            text = f"{type(error).__name__}: {error}"[:1000]
            self._link.send(
                p.FormFailed(
                    wid=self.config.wid,
                    generation=form.generation,
                    error=text,
                    handle=self.groups.handle(),
                    suspect=_suspect(error, form),
                )
            )
            return False
        self._link.send(
            p.Formed(
                wid=self.config.wid,
                generation=form.generation,
                step=form.start_step,
                seconds={name: round(value, 4) for name, value in seconds.items()},
            )
        )
        if form.generation == 1:
            self._take_snapshot(form.start_step)
        return True

    def _become_member(self, form: p.Form) -> None:
        assert self._state is not None
        self.generation = form.generation
        self.progress[Slot.GENERATION] = form.generation
        self._committed, self._torn = form.start_step, False
        self._first_count = form.start_step + 1
        self.progress[Slot.COMMITTED] = form.start_step
        self._last_record = self._capture_record()
        self._records.write(form.start_step, is_commit=True, data=self._last_record)
        self._entry, self._entry_is_exact = (-1, b""), False
        self._snapshot_every = form.snapshot_every
        if self._checkpoints is not None:
            rank = form.members.index(self.config.wid)
            self._checkpoints.begin(form.generation, rank, form.members, form.start_step)

    _first_count = 0
    _torn = False

    def _exchange_state(self, form: p.Form, rank: int, encoded: Encoded | None) -> None:
        assert self._state is not None
        source = form.rank_state.get(str(rank))
        if self.config.wid in form.receivers:
            self._receive(form)
        elif form.receivers and any(wid == self.config.wid for wid, _ in form.donors):
            assert encoded is not None
            self._give(form, encoded)
        if source is not None:
            address, name = source
            with client(address, self.config.secret, form.timeout) as connection:
                self._state.restore_rank(vault.state_in(bytes(connection.read(name))))

    def _receive(self, form: p.Form) -> None:
        assert self._state is not None
        self._torn = True  # until this worker is a member, it holds neither its state nor theirs
        addresses = [address for _, address in form.donors]
        if form.source == "snapshot":
            name = f"snapshot/{form.start_step}/payload"
            value = fetch_payload(addresses, name, form.digest, self.config.secret, form.timeout)
            self._state.load_replicated(value)
            return
        value = fetch_state(
            addresses,
            form.generation,
            form.digest,
            self.config.secret,
            form.timeout,
            receiver=self.config.wid,
            endpoints=self._endpoints,
        )
        self._state.load_replicated(value)

    def _give(self, form: p.Form, encoded: Encoded) -> None:
        """Serve the state until every receiver has it: it must not change before."""
        self._offer.open(form.generation, encoded, receivers=len(form.receivers))
        deadline = time.monotonic() + form.timeout + 60.0
        while not self._offer.wait(0.02):
            if self._is_superseded(form):
                raise HaltedError
            if time.monotonic() > deadline:
                raise TimeoutError("a receiver did not confirm the state that it was given")
        self._offer.shut()

    def _announce_done(self) -> None:
        assert self._state is not None
        self.progress.enter(Phase.WAITING)
        digest = digest_of(self._state.encode_replicated().manifest())
        self._link.send(
            p.Done(
                wid=self.config.wid,
                generation=self.generation,
                committed=self._committed,
                digest=digest,
                handle=self.groups.handle(),
            )
        )


def _suspect(error: Exception, form: p.Form) -> int:
    """Return the donor that the error is about."""
    address = error.address if isinstance(error, TransferError) else ""
    return next((wid for wid, theirs in form.donors if theirs == address), -1)


def _giver(endpoints: Endpoints | None) -> Giver | None:
    if endpoints is None:
        return None
    from keepstep.runtime import one_sided

    return one_sided.Giver(endpoints)


def _own_gpu(wid: int) -> torch.device:
    """Return the GPU of this process; several workers may share one.

    NCCL refuses two ranks of one host on one card; with an id of its own each counts as a host and
    they talk through sockets.
    """
    count = torch.cuda.device_count()
    local = int(os.environ["LOCAL_RANK"])
    if int(os.environ["KEEPSTEP_LOCAL_SLOTS"]) > count:
        os.environ.setdefault("NCCL_HOSTID", f"keepstep-{wid}")
    device = torch.device("cuda", local % count)
    torch.cuda.set_device(device)
    return device


def _print_traceback(error: Exception) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began
