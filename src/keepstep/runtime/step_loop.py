"""The steps of one worker: run, committed, repeated in the next generation when one is lost.

A step that raises, for whatever reason, is a fault to survive: ``admission`` leads back from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from keepstep.runtime import protocol as p
from keepstep.runtime.admission import Admission
from keepstep.runtime.garbage import Collection
from keepstep.runtime.group import Groups
from keepstep.runtime.inject import Injector
from keepstep.runtime.link import AgentLink, FinishedError, HaltedError
from keepstep.runtime.position import Position
from keepstep.runtime.progress import Phase, ProgressRecord, Slot
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.snapshot_taker import SnapshotTaker
from keepstep.runtime.state import State, digest_of
from keepstep.runtime.step_time import StepTime

if TYPE_CHECKING:
    from keepstep.runtime.checkpoints import Checkpoints


class HiddenFailureError(Exception):
    """The script kept to itself that a collective failed."""


@dataclass(kw_only=True, slots=True)
class StepLoop:
    """Runs ``step(n)`` until all ``steps`` are committed and the coordinator says that all are."""

    wid: int
    step: Callable[[int], None]
    steps: int
    position: Position
    state: State
    records: RankRecords
    link: AgentLink
    groups: Groups
    progress: ProgressRecord
    injector: Injector
    step_time: StepTime
    snapshots: SnapshotTaker
    checkpoints: Checkpoints | None
    admission: Admission
    collection: Collection

    def run_generation(self) -> None:
        """Run steps until the generation ends; return as a member of the next one.

        Raises:
            FinishedError: the job is complete.
        """
        try:
            while self.position.committed < self.steps:
                self._stop_at_boundary()
                self._run_step(self.position.committed)
            if self.checkpoints is not None:
                self.progress.enter(Phase.WAITING)
                self.checkpoints.finish(self._rank_state, self._stop_at_boundary)
            self._announce_done()
            self._obey(self.link.wait_order())
        except FinishedError:
            raise
        except Exception as error:  # whatever a step raises is a fault to survive
            self.admission.recover(error)

    def _obey(self, order: p.Message) -> None:
        if isinstance(order, p.Finish):
            raise FinishedError
        if isinstance(order, p.Halt):
            raise HaltedError

    def _stop_at_boundary(self) -> None:
        halt = self.link.halt_after(self.position.generation)
        if halt is None:
            return
        if halt.at_step is None or halt.at_step <= self.position.committed:
            raise HaltedError

    def _run_step(self, number: int) -> None:
        self.step_time.begin()
        self.position.step, self.position.hides_failure = number, False
        self.progress[Slot.STEP] = number
        self.progress.enter(Phase.STEP)
        self.injector.at_step(number, dist.get_rank())
        self.step(number)
        if not self.step_time.has_waited:
            self.step_time.stretch(self.injector.slowness)
        self._commit(number + 1)

    def _commit(self, count: int) -> None:
        # No look at halts here: the state has changed, a halt from now on finds a complete step.
        self.groups.check()
        if self.position.hides_failure:
            raise HiddenFailureError(
                "a collective of this step failed and the step went on: its result is not that of "
                "the step. Let the exception of a collective leave the step; keepstep repeats it"
            )
        self.link.check_lease()
        self.progress.enter(Phase.COMMIT)
        self.records.commit(count)
        if self.records.changes_late and not self.position.told_late:
            self.position.told_late = True
            self.link.send(p.ChangedLate(wid=self.wid, step=count - 1))
        self.state.mark_clean()
        self.step_time.publish(self.progress)
        self.position.committed = count
        self.progress[Slot.COMMITTED] = count
        if count == self.position.first_commit:
            self._tell_resumed(count)
            self.collection.release()
        self.snapshots.after_commit(count, self.steps)
        if self.checkpoints is not None:
            self.checkpoints.committed(count, self._rank_state)

    def _tell_resumed(self, count: int) -> None:
        digest = ""
        if self.position.prove:
            digest = digest_of(self.state.encode_replicated().manifest())
        self.link.send(
            p.Resumed(
                wid=self.wid,
                generation=self.position.generation,
                committed=count,
                ago=0.0,
                digest=digest,
            )
        )

    def _rank_state(self) -> bytes:
        return self.records.last_state

    def _announce_done(self) -> None:
        self.progress.enter(Phase.WAITING)
        digest = digest_of(self.state.encode_replicated().manifest())
        self.link.send(
            p.Done(
                wid=self.wid,
                generation=self.position.generation,
                committed=self.position.committed,
                digest=digest,
                handle=self.groups.handle(),
            )
        )
