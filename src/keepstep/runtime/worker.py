"""One supervised worker: how it joins, what the user's step calls, how training begins and ends.

The training thread owns everything here; the side thread (``link``) only delivers orders and makes
blocked collectives fail. ``step_loop`` runs the steps, ``admission`` leads into a generation.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.admission import Admission
from keepstep.runtime.bit_flip import flip_bit
from keepstep.runtime.checkpoint_plan import Checkpoint
from keepstep.runtime.config import WorkerConfig
from keepstep.runtime.failures import origin_of
from keepstep.runtime.garbage import Collection
from keepstep.runtime.handover import Handover
from keepstep.runtime.inject import Injector
from keepstep.runtime.joining import create_groups, make_endpoints, warm_up
from keepstep.runtime.link import AgentLink, FinishedError, HaltedError
from keepstep.runtime.position import Position
from keepstep.runtime.progress import Phase, ProgressRecord
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.snapshot_taker import SnapshotTaker
from keepstep.runtime.state import State, digest_of
from keepstep.runtime.step_loop import StepLoop
from keepstep.runtime.step_time import StepTime
from keepstep.runtime.witness import testify

if TYPE_CHECKING:
    from keepstep.runtime.checkpoints import Checkpoints, Outcome

ENDPOINTS_WITHIN = 30.0  # seconds; they are made while the script builds its model


class Supervision:
    """The worker's side of ``keepstep run``."""

    def __init__(self, config: WorkerConfig) -> None:
        """Connect to agent and store, create the process group, announce ``join``."""
        self.config = config
        self.progress = ProgressRecord.attach(Path(config.progress))
        self.progress.life.hold()
        self._vault = Path(config.vault)
        self.groups = create_groups(config)
        self._link = AgentLink(
            socket.socket(fileno=config.link),
            self.progress,
            on_halt=self.groups.unblock,
            sequence=self.groups.sequence,
            testify=self._testify if config.testifies else None,
        )
        self._link.send(p.Joined(wid=config.wid, torch=torch.__version__))
        self._writer = vault.RankRecordWriter(self._vault, config.wid)
        self._samples = SampleNotes()
        self._endpoints = make_endpoints(config)
        self._handover = Handover(config.wid, config.host, config.secret, self._endpoints)
        self._injector = Injector(list(config.injections), self._announce, self._flip_bit)
        self._step_time = StepTime()
        self._position = Position()
        self._state: State | None = None  # both: None until ``train``
        self._records: RankRecords | None = None

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 for a process that has no rank yet."""
        return self._position.generation

    @property
    def entered(self) -> int:
        """The same, and already while this process receives the state of its rank."""
        return self._position.entered

    def _testify(self, generation: int) -> None:
        testify(self._vault, self.config.wid, generation, self.config.backend)

    def _announce(self, index: int, step: int) -> None:
        self._link.send(p.Fired(wid=self.config.wid, index=index, step=step))

    def _flip_bit(self) -> None:
        assert self._state is not None
        flip_bit(self._state)

    # --- called from inside the step ------------------------------------------------------------

    def note_samples(self, step: int, positions: range, batch: int) -> None:
        """Note which samples this rank uses of the ``batch`` of a step."""
        self._samples.note(self.generation, step, positions, batch)

    def note_entry(self) -> None:
        """Leave the per-rank state with the agent, should this rank die before it commits."""
        if self._records is not None:
            self._records.note_entry(self._position.step + 1)

    @property
    def has_noted_entry(self) -> bool:
        """Whether an earlier collective of this step has left it."""
        return self._records is not None and self._records.has_entered(self._position.step + 1)

    def enter_collective(self) -> None:
        """Publish that the training thread waits for others from now on."""
        self._step_time.stretch(self._injector.slowness)
        self._step_time.enter_collective()
        self.progress.enter(Phase.COLLECTIVE)

    def leave_collective(self) -> None:
        """Publish that it goes on by itself."""
        self._check()
        self._step_time.leave_collective()
        self.progress.enter(Phase.STEP)

    def note_failure(self, error: Exception) -> None:
        """Note that a collective failed, should the script keep that to itself.

        What the script itself raises between two collectives is its own business.
        """
        if isinstance(error, HaltedError) or origin_of(error) == "collective":
            self._position.hides_failure = True

    def _check(self) -> None:
        """Raise if what the collectives of this step returned must not be used.

        Raises:
            DistBackendError: a collective failed on the GPU.
            HaltedError: the generation is being left; an aborted collective returns garbage.
        """
        self.groups.check()
        self._link.check(self._position.generation)

    # --- training -------------------------------------------------------------------------------

    def train(
        self,
        step: Callable[[int], None],
        state: State,
        steps: int,
        begin: Callable[[], None],
        warm: Callable[[], None] | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Run the steps; ``begin`` is called at the start of every generation."""
        config = self.config
        records = RankRecords(state, self._samples, self._writer)
        self._state, self._records = state, records
        if warm is not None:
            warm_up(state, warm)
        checkpoints, start = self._load_checkpoint(checkpoint, state, steps)
        state.guard = self._check
        state.mark_clean()
        encoded = state.encode_replicated()
        self.progress.enter(Phase.WAITING)
        if self._endpoints is not None:
            # Making them opens TCP connections; during a change of members these would be taken
            # for connections of gloo. None begins before this worker has said that it is ready.
            self._endpoints.wait(ENDPOINTS_WITHIN)
        self._link.send(
            p.Ready(
                wid=config.wid,
                handle=self.groups.handle(),
                steps=steps,
                digest=digest_of(encoded.manifest()),
                address=self._handover.address,
                start=start,
            )
        )
        records.begin(0, max(0, start))
        snapshots = SnapshotTaker(config.wid, self._vault, state, records, self._link)
        collection = Collection()
        admission = Admission(
            wid=config.wid,
            position=self._position,
            state=state,
            records=records,
            link=self._link,
            groups=self.groups,
            progress=self.progress,
            injector=self._injector,
            handover=self._handover,
            snapshots=snapshots,
            checkpoints=checkpoints,
            collection=collection,
            begin=begin,
        )
        loop = StepLoop(
            wid=config.wid,
            step=step,
            steps=steps,
            position=self._position,
            state=state,
            records=records,
            link=self._link,
            groups=self.groups,
            progress=self.progress,
            injector=self._injector,
            step_time=self._step_time,
            snapshots=snapshots,
            checkpoints=checkpoints,
            admission=admission,
            collection=collection,
        )
        try:
            admission.enter_next(encoded)
            while True:
                loop.run_generation()
        except FinishedError:
            collection.release()
            self.progress.enter(Phase.LEFT)
            if self.generation == 0:
                sys.exit(0)  # a spare that was never needed

    def _load_checkpoint(
        self, plan: Checkpoint | None, state: State, steps: int
    ) -> tuple[Checkpoints | None, int]:
        """Return the step that was loaded as well: 0 for none, -1 if none was sought."""
        if plan is None:
            return None, 0
        from keepstep.runtime.checkpoints import Checkpoints  # takes a second to import

        checkpoints = Checkpoints(plan, state, steps, self._tell_checkpoint)
        rank = int(os.environ["RANK"])
        # Others come later, or as spares: they receive the state of those who have a rank.
        return checkpoints, checkpoints.resume(rank) if rank < self.config.world_size else -1

    def _tell_checkpoint(self, outcome: Outcome) -> None:
        self._link.send(p.Checkpointed(wid=self.config.wid, **dataclasses.asdict(outcome)))
