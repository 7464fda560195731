"""How a worker becomes a member of the next generation, at the start and after every fault.

Wait for the coordinator's halt, say what this worker holds, take over what it lacks, go on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from keepstep.runtime import generators
from keepstep.runtime import protocol as p
from keepstep.runtime.failures import origin_of
from keepstep.runtime.garbage import Collection
from keepstep.runtime.group import Groups
from keepstep.runtime.handover import Handover, RecordMissingError
from keepstep.runtime.inject import Injector
from keepstep.runtime.joining import drop_gradients
from keepstep.runtime.link import AgentLink, FinishedError, HaltedError
from keepstep.runtime.position import Position
from keepstep.runtime.progress import Phase, ProgressRecord, Slot
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.snapshot_taker import SnapshotTaker
from keepstep.runtime.state import Encoded, State, digest_of
from keepstep.runtime.transfer import AbsentError, TransferError

if TYPE_CHECKING:
    from keepstep.runtime.checkpoints import Checkpoints


# Of an exit that makes room: peers meet in the store, and a lost connection to it stays lost.
_STORE_LOST = (
    "keepstep: the job's store has been restarted, and this process cannot reach the new one; "
    "another process takes its place"
)


@dataclass(kw_only=True, slots=True)
class Admission:
    """The way of one worker into generation after generation.

    ``begin`` is called in each of them, when communication is possible and no step has begun.
    """

    wid: int
    position: Position
    state: State
    records: RankRecords
    link: AgentLink
    groups: Groups
    progress: ProgressRecord
    injector: Injector
    handover: Handover
    snapshots: SnapshotTaker
    checkpoints: Checkpoints | None
    collection: Collection
    begin: Callable[[], None]
    _proposed: int = field(default=0, init=False)  # generation of the newest proposal

    def recover(self, error: Exception) -> None:
        """Say what went wrong, unless the coordinator made it so, and enter the next generation."""
        self.progress.enter(Phase.WAITING)
        halt = self.link.halt_after(self.position.generation)
        is_halted = halt is not None and halt.at_step is None
        origin = origin_of(error)
        is_order = isinstance(error, HaltedError)  # obeyed at a boundary: nothing has failed
        if not is_order and (not is_halted or origin in p.FATAL):
            self._report_failure(error, origin)
        self.enter_next(None)

    def _report_failure(self, error: Exception, origin: str) -> None:
        if origin != "collective":
            sys.excepthook(type(error), error, error.__traceback__)
        self.link.send(
            p.StepFailed(
                wid=self.wid,
                generation=self.position.generation,
                step=self.position.step,
                error=_text_of(error),
                origin=origin,
            )
        )

    def enter_next(self, first: Encoded | None) -> None:
        """Obey orders until this worker is a member of a generation.

        Args:
            first: the state that this worker has offered already; None: it has to propose again.

        Raises:
            FinishedError: the job is complete.
        """
        self.collection.hold()
        encoded = first
        while True:
            halt = self.link.halt_after(max(self.position.generation, self._proposed))
            if halt is not None:
                encoded = self.propose(halt.generation)
            order = self.link.wait_order()
            if isinstance(order, p.Finish):
                raise FinishedError
            if (
                isinstance(order, p.Form)
                and self.wid in order.members
                and not self._is_superseded(order)
                and self.enter(order, encoded)
            ):
                return

    def _is_superseded(self, form: p.Form) -> bool:
        return self.link.halt_after(form.generation) is not None

    def propose(self, generation: int) -> Encoded | None:
        """Undo what the interrupted step did to this rank alone and say what is left."""
        self._proposed = generation
        drop_gradients(self.state)
        clean = self.state.is_clean() and not self.position.torn
        encoded = self.state.encode_replicated() if clean else None
        digest = digest_of(encoded.manifest()) if encoded is not None else ""
        committed = self.position.committed
        self.records.go_back()
        self.link.send(
            p.Proposal(
                wid=self.wid,
                generation=generation,
                committed=committed,
                clean=clean,
                digest=digest,
                handle=self.groups.handle(),
                entry=self.records.known(committed),
                member_of=self.position.generation,
                repeatable=_is_repeatable(),
            )
        )
        return encoded

    def enter(self, form: p.Form, encoded: Encoded | None) -> bool:
        """Become a member of the generation that ``form`` describes; False if that failed."""
        self.progress.enter(Phase.FORMING)
        self.injector.fired.update(form.fired)
        rank = form.members.index(self.wid)
        if form.generation > 1:
            self.injector.at_recovery(form.start_step, rank)
        seconds: dict[str, float] = {}
        try:
            with _timed(seconds, "reconfigure"):
                self.groups.reconfigure(form.uuid, form.handles, form.timeout)
            self.position.entered = form.generation
            with _timed(seconds, "state"):
                self._exchange_state(form, rank, encoded)
            self._become_member(form, rank)
            with _timed(seconds, "begin"):
                self._begin()
        except Exception as error:  # a peer may vanish at any point of this
            cause = error.cause if isinstance(error, _ScriptFailedError) else error
            if isinstance(cause, RuntimeError) and not self.groups.has_store():
                sys.exit(_STORE_LOST)
            self.progress.enter(Phase.WAITING)
            if cause is not error:
                sys.excepthook(type(cause), cause, cause.__traceback__)
            self.link.send(
                p.FormFailed(
                    wid=self.wid,
                    generation=form.generation,
                    error=_text_of(cause),
                    handle=self.groups.handle(),
                    suspect=_suspect(cause, form) if cause is error else self.wid,
                    lacks=_lacks(error, form),
                )
            )
            return False
        self.link.send(
            p.Formed(
                wid=self.wid,
                generation=form.generation,
                step=form.start_step,
                seconds={name: round(value, 4) for name, value in seconds.items()},
            )
        )
        if form.generation == 1:
            self.snapshots.take(form.start_step)
        return True

    def _begin(self) -> None:
        """Let the script adapt; how often that happens must leave no trace in random numbers."""
        before = generators.capture()
        with _in_script():
            self.begin()
        if generators.capture() is not before:
            generators.restore(before)

    def _exchange_state(self, form: p.Form, rank: int, encoded: Encoded | None) -> None:
        source = form.rank_state.get(str(rank))
        if self.wid in form.receivers:
            # Until this worker is a member, it holds neither its state nor theirs.
            self.position.torn = True
            received = self.handover.receive(form)
            with _in_script():
                self.state.load_replicated(received)
        elif form.receivers and any(wid == self.wid for wid, _ in form.donors):
            assert encoded is not None
            self.handover.give(form, encoded, lambda: self._is_superseded(form))
        if source is not None:
            address, name = source
            record = self.handover.rank_state(address, name, form.timeout)
            with _in_script():
                self.state.restore_rank(record)

    def _become_member(self, form: p.Form, rank: int) -> None:
        position = self.position
        position.generation = form.generation
        self.progress[Slot.GENERATION] = form.generation
        position.committed, position.torn = form.start_step, False
        position.first_commit, position.prove = form.start_step + 1, form.prove
        self.progress[Slot.COMMITTED] = form.start_step
        self.records.begin(form.generation, form.start_step)
        self.snapshots.every = form.snapshot_every
        if self.checkpoints is not None:
            self.checkpoints.begin(form.generation, rank, form.members, form.start_step)


def _is_repeatable() -> bool:
    """Return whether a step that is done again gives the same bits, as far as torch promises it."""
    return not torch.cuda.is_initialized() or torch.are_deterministic_algorithms_enabled()


class _ScriptFailedError(Exception):
    """What the script does when its process enters a generation raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _in_script() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if origin_of(error) == "collective":
            raise
        raise _ScriptFailedError(error) from error


def _lacks(error: Exception, form: p.Form) -> str:
    """Return what this worker was to take over and is nowhere."""
    if form.source == "snapshot":
        return "snapshot" if isinstance(error, RecordMissingError | AbsentError) else ""
    return "record" if isinstance(error, RecordMissingError) else ""


def _suspect(error: Exception, form: p.Form) -> int:
    """Return the donor that the error is about."""
    address = error.address if isinstance(error, TransferError) else ""
    return next((wid for wid, theirs in form.donors if theirs == address), -1)


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began
