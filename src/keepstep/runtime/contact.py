"""The agent's connection to the coordinator, and what it says of losing it and having it again."""

from __future__ import annotations

import time
from collections.abc import Callable

from keepstep.runtime import protocol as p
from keepstep.runtime.agent_events import AgentEvents
from keepstep.runtime.channel import Channel, connect

CONNECT_TIMEOUT = 2.0
SEEK_QUIETLY = 2.0  # seconds without a first contact before that is told
SEEK_TOLD = 30.0  # seconds between two times that it is told
SEEK_LIMIT = 600.0  # seconds; hosts of one job may be given to it at different times


class Contact:
    """At most one connection at a time; without one, what is sent is dropped.

    Nothing is lost by that: the ``Hello`` of the next connection repeats what counts.
    """

    def __init__(self, address: tuple[str, int], secret: str, events: AgentEvents) -> None:
        """Connect to nobody until ``talk``."""
        self._address, self._secret, self._events = address, secret, events
        self._channel: Channel | None = None
        self._connected = 0.0  # when the newest connection was made
        self._is_known = False  # the coordinator has welcomed us once
        self._away_since: float | None = None  # no contact with the coordinator
        self._sought_since: float | None = None  # when the first attempt to find it failed
        self._sought_told = 0.0  # when that was told last

    @property
    def is_there(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._channel is not None

    async def talk(self, hello: Callable[[], p.Hello], take: Callable[[p.Message], None]) -> None:
        """Connect, introduce ourselves and ``take`` messages until the connection ends.

        Raises:
            AuthenticationError: the secrets differ.
            EOFError, OSError, ProtocolError: there is no connection any more, or none was made.
        """
        host, port = self._address
        channel = await connect(host, port, self._secret, CONNECT_TIMEOUT)
        self._channel, self._connected = channel, time.monotonic()
        channel.send(hello())
        while True:
            take(await channel.receive())

    def send(self, message: p.Message) -> None:
        """Send, if somebody listens."""
        if self._channel is not None:
            self._channel.send(message)

    def note_loss(self, lease_left: float, *, is_end: bool) -> None:
        """Note that the connection is gone; at the job's end that is no event."""
        if self._channel is not None and not is_end:
            self._away_since = time.monotonic()
            self._events.tell("coordinator_away", lease_s=round(lease_left, 3))
        self._channel = None

    def note_failure(self, error: Exception) -> str | None:
        """Note that there is no contact yet; return why to give up, if it is time for that."""
        if self._is_known:
            return None
        now = time.monotonic()
        self._sought_since = self._sought_since or now
        waited = now - self._sought_since
        where = "{}:{}".format(*self._address)
        why = str(error) or type(error).__name__
        if waited > SEEK_LIMIT:
            return (
                f"no coordinator answered at {where} for {waited:.0f} s ({why}). --join wants the "
                "address of the first host and the --port that its keepstep run was given"
            )
        if waited > SEEK_QUIETLY and now - self._sought_told > SEEK_TOLD:
            self._sought_told = now
            self._events.tell(
                "coordinator_sought", address=where, why=why, after_s=round(waited, 1)
            )
        return None

    def note_welcome(self) -> None:
        """Note that the coordinator has taken us in."""
        if not self._is_known:
            self._is_known = True
            host, port = self._address
            self._events.tell("job_joined", coordinator=f"{host}:{port}")
        if self._away_since is not None:
            after = time.monotonic() - self._away_since
            self._away_since = None
            self._events.tell("coordinator_back", after_s=round(after, 3))

    def give_up(self, now: float, older_than: float) -> None:
        """Abort a connection that has lasted ``older_than`` seconds.

        A cable that is plugged in again must not revive it: the coordinator counts us as gone, we
        have to introduce ourselves anew.
        """
        if self._channel is not None and now - self._connected > older_than:
            self._channel.abort()
            self._channel, self._away_since = None, self._away_since or now

    def close(self) -> None:
        """Close the connection. May be called twice."""
        if self._channel is not None:
            self._channel.close()
