"""The per-rank state of a worker, left with its agent at each commit and each last collective."""

from __future__ import annotations

from keepstep.runtime import vault
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.state import State

_NOTHING = (b"", b"")


class RankRecords:
    """What would outlive this worker, and what it goes back to when a step is interrupted."""

    def __init__(self, state: State, samples: SampleNotes, writer: vault.RankRecordWriter) -> None:
        """Leave nothing until ``begin``."""
        self._state, self._samples, self._writer = state, samples, writer
        self._last = _NOTHING  # of the newest commit
        self._entry, self._entered = _NOTHING, -1  # of the newest entry, and its count
        self._entry_is_exact = False  # entry and commit were equal in the newest step
        self.changes_late = False  # in some step they were not

    @property
    def last(self) -> bytes:
        """The record of the newest commit."""
        return b"".join(self._last)

    @property
    def last_state(self) -> bytes:
        """The per-rank state at the newest commit."""
        return self._last[1]

    def begin(self, generation: int, count: int) -> None:
        """Leave the present state as that after ``count`` steps; nothing earlier counts."""
        notes, state = self._last = self._present()
        self._writer.begin(generation, count, state=state, notes=notes)
        self._entry, self._entered, self._entry_is_exact = _NOTHING, -1, False

    def note_entry(self, count: int) -> None:
        """Leave the state in the last collective of a step, should this rank die in it.

        Args:
            count: what the step will have committed.
        """
        try:
            notes, state = self._entry = self._present()
        except BaseException:
            if self.has_entered(count):  # an earlier collective of the step: not what it was then
                self._writer.forget_entry(count)
            self._entered = -1
            raise
        self._writer.write(count, is_commit=False, state=state, notes=notes)
        self._entered = count

    def has_entered(self, count: int) -> bool:
        """Return whether an entry of the step that commits ``count`` was left."""
        return self._entered == count

    def commit(self, count: int) -> None:
        """Leave the state after ``count`` steps."""
        notes, state = self._last = self._present()
        self._entry_is_exact = self._entered == count and self._entry == self._last
        if self._entry_is_exact:
            self._writer.confirm(count)
        else:
            self.changes_late |= self._entered == count
            self._writer.write(count, is_commit=True, state=state, notes=notes)

    def known(self, committed: int) -> int:
        """Return the newest count for which this rank's state is known, as the agent finds it."""
        if self._entry_is_exact and self._entered == committed + 1:
            return committed + 1
        return committed

    def go_back(self) -> None:
        """Undo what an interrupted step did to the per-rank state."""
        self._state.restore_rank(self.last_state)

    def _present(self) -> tuple[bytes, bytes]:
        """Return sample notes and state."""
        return vault.pack_notes(self._samples.runs), self._state.capture_rank()
