"""State from worker to worker while a generation forms: given to receivers, taken from donors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.exchange import Offer, fetch_payload, fetch_state
from keepstep.runtime.link import HaltedError
from keepstep.runtime.state import Encoded
from keepstep.runtime.transfer import AbsentError, ByteServer, client

if TYPE_CHECKING:
    from keepstep.runtime.one_sided import Endpoints, Giver


class RecordMissingError(Exception):
    """What a rank left of its per-rank state is not where it should be."""


class Handover:
    """Both sides of one worker. ``endpoints``: where state may be read one-sidedly."""

    def __init__(self, wid: int, host: str, secret: str, endpoints: Endpoints | None) -> None:
        """Begin to serve; nothing is offered until ``give``."""
        self._wid, self._secret, self._endpoints = wid, secret, endpoints
        self._offer = Offer(receivers=0, giver=_giver(endpoints))
        self._server = ByteServer(host, secret, self._offer.provide)
        self.address = f"{host}:{self._server.port}"

    def give(self, form: p.Form, encoded: Encoded, is_superseded: Callable[[], bool]) -> None:
        """Serve the state until every receiver has it: it must not change before.

        Raises:
            HaltedError: the generation will not come about.
            TimeoutError: a receiver did not confirm.
        """
        self._offer.open(form.generation, encoded, receivers=len(form.receivers))
        deadline = time.monotonic() + form.timeout + 60.0
        while not self._offer.wait(0.02):
            if is_superseded():
                raise HaltedError
            if time.monotonic() > deadline:
                raise TimeoutError("a receiver did not confirm the state that it was given")
        self._offer.shut()

    def receive(self, form: p.Form) -> Any:
        """Return the replicated state with which the generation starts, checked.

        Raises:
            CorruptStateError, TransferError: no donor gave the agreed state.
        """
        addresses = [address for _, address in form.donors]
        if form.source == "snapshot":
            name = f"snapshot/{form.start_step}/payload"
            return fetch_payload(addresses, name, form.digest, self._secret, form.timeout)
        return fetch_state(
            addresses,
            form.generation,
            form.digest,
            self._secret,
            form.timeout,
            receiver=self._wid,
            endpoints=self._endpoints,
        )

    def rank_state(self, address: str, name: str, timeout: float) -> bytes:
        """Return the per-rank state under ``name`` in the vault at ``address``.

        Raises:
            RecordMissingError: it is not there.
            TransferError: the vault cannot be read.
        """
        with client(address, self._secret, timeout) as connection:
            try:
                return vault.state_in(bytes(connection.read(name)))
            except AbsentError as error:
                raise RecordMissingError(str(error)) from error


def _giver(endpoints: Endpoints | None) -> Giver | None:
    if endpoints is None:
        return None
    from keepstep.runtime import one_sided

    return one_sided.Giver(endpoints)
