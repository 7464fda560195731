"""The worker's line to its agent, and the side thread that keeps it.

The side thread reads orders, publishes that it runs (so that a held interpreter lock shows) and
watches the lease: when the agent lost the job for too long, the worker ends itself before it can
compute another step in a generation that the others have left. Where the host was suspended for
longer than the lease, the training thread uses nothing before the lease is extended.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable

from keepstep.runtime.pauses import Pauses
from keepstep.runtime.progress import Phase, ProgressRecord, Slot
from keepstep.runtime.protocol import (
    Halt,
    Message,
    SnapshotEvery,
    Testify,
    from_json,
    to_json,
)
from keepstep.runtime.settings import Times

BEATS = 4  # signs of life of the side thread in the time of one patience
_LEASE = int(Slot.LEASE)
LEASE_LOOK = 0.01  # seconds between two looks at a lease that has ended
SHORTEST_BEAT, LONGEST_BEAT = 0.05, 0.25  # seconds between two of them


class HaltedError(Exception):
    """An order to leave the generation arrived while the worker waited for something else."""


class FinishedError(Exception):
    """The job is complete."""


class AgentLink:
    """Orders in, reports out. ``halted`` is set while an immediate halt waits to be obeyed."""

    def __init__(
        self,
        connection: socket.socket,
        progress: ProgressRecord,
        on_halt: Callable[[], None],
        sequence: Callable[[], int],
        testify: Callable[[int], None] | None,
    ) -> None:
        """Start the side thread; ``testify`` leaves evidence about the generation it is given."""
        self._testify = testify
        self._testified = (-1, -1)  # generation and collectives when that was done last
        self._connection, self._progress = connection, progress
        self._on_halt, self._sequence = on_halt, sequence
        self._lock = threading.Lock()
        self.orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.halt: Halt | None = None
        self.snapshot_every: SnapshotEvery | None = None
        self._buffer = bytearray()
        self._pauses = Pauses()
        threading.Thread(target=self._run, name="keepstep-side", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a report; it reaches the agent even if this process dies right after."""
        with self._lock:
            self._connection.sendall(to_json(message) + b"\n")

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException:
            # Without this thread the worker can neither be halted nor judged: better to end.
            traceback.print_exc()
            os.kill(os.getpid(), signal.SIGKILL)

    def _keep(self) -> None:
        while True:
            self._progress[Slot.SIDE] = time.monotonic_ns()
            self._progress[Slot.SEQUENCE] = self._sequence()
            now = time.monotonic()
            self._pauses.look(now)
            pause = min(self._beat(), self._obey_lease(now))
            self._pauses.will_look(now, pause)
            ready, _, _ = select.select([self._connection], [], [], pause)
            if ready and not self._read():
                os.kill(os.getpid(), signal.SIGKILL)  # the agent is gone: fence ourselves

    def _beat(self) -> float:
        return min(LONGEST_BEAT, max(SHORTEST_BEAT, self._progress[Slot.PATIENCE] / 1e9 / BEATS))

    def _obey_lease(self, now: float) -> float:
        """Return the seconds that are left of the lease; end this process if there are none."""
        lease = self._progress[Slot.LEASE] / 1e9
        if not lease:
            return LONGEST_BEAT
        if now > lease:
            times = Times(patience=self._progress[Slot.PATIENCE] / 1e9, median_step=0.0)
            lease = max(lease, self._pauses.woke + times.lease)
        if now > lease:
            os.kill(os.getpid(), signal.SIGKILL)
        return max(0.0, lease - now)

    def check(self, generation: int) -> None:
        """Let the training thread use what the collectives of this step returned, or raise.

        Raises:
            HaltedError: ``generation`` is being left; an aborted collective returns garbage.
        """
        self.check_lease()
        halt = self.halt
        if halt is not None and halt.generation > generation and halt.at_step is None:
            raise HaltedError

    def check_lease(self) -> None:
        """Let the training thread use what it computed, halted or not."""
        lease = self._progress.fields[_LEASE]
        if lease and time.monotonic_ns() > lease:
            self._wait_for_lease()

    def _wait_for_lease(self) -> None:
        """Wait until this host is known to be part of the job.

        After a pause it may not be: either the lease is extended, or this process is killed.
        """
        phase = Phase(self._progress[Slot.PHASE])
        self._progress.enter(Phase.WAITING)
        while time.monotonic_ns() > self._progress[Slot.LEASE]:
            time.sleep(LEASE_LOOK)
        self._progress.enter(phase)

    def _read(self) -> bool:
        data = self._connection.recv(1 << 16)
        if not data:
            return False
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._take(from_json(line))
        return True

    def _take(self, message: Message) -> None:
        if isinstance(message, Testify):
            self._leave_evidence()
            return
        if isinstance(message, Halt):
            self.halt = message
            self._leave_evidence()  # before collectives are made to fail: gloo forgets which hung
            if message.at_step is None:
                self._on_halt()
        elif isinstance(message, SnapshotEvery):
            self.snapshot_every = message
            return
        self.orders.put(message)

    def _leave_evidence(self) -> None:
        """Leave it, unless nothing has been entered since it was left last."""
        moment = (self._progress[Slot.GENERATION], self._sequence())
        if self._testify is None or moment[0] == 0 or moment == self._testified:
            return
        self._testified = moment
        try:
            self._testify(moment[0])
        except Exception:  # evidence is worth much, but not a rank
            traceback.print_exc()

    def halt_after(self, generation: int) -> Halt | None:
        """Return the newest halt if it is for a generation after ``generation``, else None."""
        halt = self.halt
        return halt if halt is not None and halt.generation > generation else None

    def wait_order(self) -> Message:
        """Return the next order, waiting for it."""
        return self.orders.get()
