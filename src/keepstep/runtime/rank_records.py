"""The per-rank state of a worker, left with its agent at each commit and each last collective."""

from __future__ import annotations

from keepstep.runtime import vault
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.state import State


class RankRecords:
    """What would outlive this worker, and what it goes back to when a step is interrupted."""

    def __init__(self, state: State, samples: SampleNotes, writer: vault.RankRecordWriter) -> None:
        """Leave nothing until ``begin``."""
        self._state, self._samples, self._writer = state, samples, writer
        self.last = b""  # the record of the newest commit
        self._entry: tuple[int, bytes] = (-1, b"")  # count, record
        self._entry_is_exact = False  # entry and commit were equal in the newest step

    @property
    def last_state(self) -> bytes:
        """The per-rank state at the newest commit."""
        return vault.state_in(self.last)

    def begin(self, count: int) -> None:
        """Leave the present state as that after ``count`` steps; earlier entries do not count."""
        self.last = self._capture()
        self._writer.write(count, is_commit=True, data=self.last)
        self._entry, self._entry_is_exact = (-1, b""), False

    def note_entry(self, count: int) -> None:
        """Leave the state in the last collective of a step, should this rank die in it.

        Args:
            count: what the step will have committed.
        """
        data = self._capture()
        self._entry = (count, data)
        self._writer.write(count, is_commit=False, data=data)

    def commit(self, count: int) -> None:
        """Leave the state after ``count`` steps."""
        record = self._capture()
        self._writer.write(count, is_commit=True, data=record)
        self._entry_is_exact = self._entry == (count, record)
        self.last = record

    def known(self, committed: int) -> int:
        """Return the newest count for which this rank's state is known, as the agent finds it."""
        if self._entry_is_exact and self._entry[0] == committed + 1:
            return committed + 1
        return committed

    def go_back(self) -> None:
        """Undo what an interrupted step did to the per-rank state."""
        self._state.restore_rank(self.last_state)

    def _capture(self) -> bytes:
        return vault.join_record(self._samples.runs, self._state.capture_rank())
