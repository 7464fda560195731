"""Progress of one worker in shared memory, readable without the worker's help.

The training thread writes single 8-byte fields into a memory-mapped file that the agent made and
maps as well. A worker that is stopped, holds the interpreter lock or sleeps cannot hide it: its
record just stops changing. One writer a field, so no lock is needed; x86-64 and arm64 store an
aligned 8-byte field in one piece.

Times are ``time.monotonic_ns`` (CLOCK_MONOTONIC: the same clock for all processes of a host).
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from pathlib import Path

from keepstep.runtime.deathwatch import LifeMutex

SIZE = 4096
_LIFE = 2048  # where the mutex lies that the training thread holds


class Phase(enum.IntEnum):
    """What the training thread is doing."""

    STARTING = 0  # imports, join, building the model
    WAITING = 1  # for a rank, for a plan, for the others to finish: never a stall
    STEP = 2  # in the user's step
    COLLECTIVE = 3  # inside a collective that keepstep entered for the user
    COMMIT = 4
    FORMING = 5  # reconfigure and state transfer
    LEFT = 6  # Job.train returned


class Slot(enum.IntEnum):
    """Index of each 8-byte field. All but LEASE and PATIENCE are written by the worker."""

    PHASE = 0
    STEP = 1
    COMMITTED = 2
    GENERATION = 3
    CHANGED = 4  # when the training thread last published
    SIDE = 5  # when the side thread last ran
    SEQUENCE = 6  # collectives entered in this generation, as the side thread last saw it
    STEP_NS = 7  # duration of the last committed step
    BUSY_NS = 8  # of it, outside collectives
    ALLOWED_UNTIL = 9  # the script announced a long operation (Job.expect)
    LEASE = 10  # written by the agent: the worker must not compute after this moment
    PATIENCE = 11  # written by the agent: nanoseconds without progress that count as a stall


_PHASE, _CHANGED = int(Slot.PHASE), int(Slot.CHANGED)


class ProgressRecord:
    """The shared record; ``create`` in the agent, ``attach`` in the worker."""

    def __init__(self, memory: mmap.mmap) -> None:
        """Use ``create`` or ``attach``."""
        self.fields = memoryview(memory)[:_LIFE].cast("q")
        self.life = LifeMutex(memory, _LIFE)

    @classmethod
    def create(cls, path: Path) -> ProgressRecord:
        """Make a zeroed record at ``path``.

        Raises:
            OSError: there is no room for it. Without asking, the first write would be a SIGBUS.
        """
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)
        record = cls.attach(path)
        record.life.make()
        return record

    @classmethod
    def attach(cls, path: Path) -> ProgressRecord:
        """Map the record at ``path``."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            return cls(mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)

    def __getitem__(self, slot: Slot) -> int:
        """Return one field."""
        return self.fields[slot]

    def __setitem__(self, slot: Slot, value: int) -> None:
        """Store one field."""
        self.fields[slot] = value

    def enter(self, phase: Phase) -> None:
        """Publish that the training thread is in ``phase`` from now on."""
        fields = self.fields
        fields[_PHASE] = phase
        fields[_CHANGED] = time.monotonic_ns()


def seconds_since(moment_ns: int, now_ns: int | None = None) -> float:
    """Return the age in seconds of a monotonic time stamp (0.0 for one never set)."""
    if moment_ns == 0:
        return 0.0
    now = time.monotonic_ns() if now_ns is None else now_ns
    return max(0.0, (now - moment_ns) / 1e9)
