"""State from rank to rank, checked: what a donor offers, how a receiver takes it from several.

The receiver knows from the coordinator which digest the members agreed on. It takes a manifest
only if its SHA-256 is that digest, and a tensor only if its SHA-256 is the manifest's; what fails
comes from the next donor.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.state import Encoded, decode, digest_of, empty_tensors
from keepstep.runtime.transfer import AbsentError, TransferError, client

if TYPE_CHECKING:
    from keepstep.runtime.one_sided import Endpoints, Giver

OPEN_WITHIN = 10.0  # seconds that a receiver's request waits for the donor to reach the same point


class CorruptStateError(Exception):
    """What a source sent is not the state that the members agreed on."""


class Offer:
    """A donor's state while receivers take it."""

    def __init__(self, receivers: int, giver: Giver | None = None) -> None:
        """Nothing is offered until ``open``; with ``giver`` also to be read one-sidedly."""
        self._giver = giver
        self._condition = threading.Condition()
        self._generation = -1
        self._waiting: set[int] = set()
        self._receivers = receivers
        self._encoded: Encoded | None = None
        self._manifest = b""

    def open(self, generation: int, encoded: Encoded, receivers: int) -> None:
        """Offer ``encoded`` to ``receivers`` members of ``generation``."""
        with self._condition:
            self._finish_giving()
            self._generation, self._encoded = generation, encoded
            self._manifest = encoded.manifest()
            self._waiting, self._receivers = set(), receivers
            self._condition.notify_all()

    def shut(self) -> None:
        """Offer nothing any more."""
        with self._condition:
            self._encoded = None
            self._finish_giving()

    def _finish_giving(self) -> None:
        if self._giver is not None:
            self._giver.finish()

    def wait(self, timeout: float) -> bool:
        """Return whether every receiver is done, waiting ``timeout`` seconds at most."""
        with self._condition:
            return self._condition.wait_for(lambda: len(self._waiting) >= self._receivers, timeout)

    def provide(self, name: str) -> list[bytes | memoryview] | None:
        """Answer one request: ``state/GENERATION/WHAT``.

        WHAT is ``manifest``, ``tensors/I,J,..``, ``one-sided/...`` or ``done/WID``.
        """
        parts = name.split("/")
        if len(parts) < 3 or parts[0] != "state":
            return None
        with self._condition:
            wanted = int(parts[1])
            self._condition.wait_for(lambda: self._generation >= wanted, OPEN_WITHIN)
            if self._generation != wanted or self._encoded is None:
                return None
            return self._answer(parts[2:])

    def _answer(self, parts: list[str]) -> list[bytes | memoryview] | None:
        assert self._encoded is not None
        if parts[0] == "manifest":
            return [self._manifest]
        if parts[0] == "tensors":
            return [buffer_of(self._encoded.tensors[int(i)]) for i in parts[1].split(",")]
        if parts[0] == "one-sided" and self._giver is not None:
            found = self._giver.provide(parts[1:], self._encoded.tensors)
            return None if found is None else [*found]
        if parts[0] == "done":
            self._waiting.add(int(parts[1]))
            self._condition.notify_all()
            return []
        return None


def fetch_state(
    addresses: list[str],
    generation: int,
    digest: str,
    secret: str,
    timeout: float,
    receiver: int,
    endpoints: Endpoints | None = None,
) -> Any:
    """Return the replicated state of a generation's donors, a part from each.

    Args:
        addresses: donors, in order of preference.
        generation: the generation being formed.
        digest: what the members agreed on.
        secret: the job's secret.
        timeout: seconds for every single read.
        receiver: number of this worker, for the donors' count.
        endpoints: to read one-sidedly; what does not come this way is taken over TCP.

    Raises:
        CorruptStateError, TransferError: no donor gave the agreed state.
    """
    limit = timeout + OPEN_WITHIN
    manifest = _agreed_manifest(addresses, generation, digest, secret, limit)
    entries = manifest["tensors"]
    tensors = empty_tensors(manifest)
    sizes = [tensor.nbytes for tensor in tensors]
    if endpoints is not None:
        arrived = _read_one_sided(endpoints, addresses, generation, sizes, tensors, secret, limit)
        sizes = [0 if index in arrived else size for index, size in enumerate(sizes)]
    shares = share_out(sizes, len(addresses))
    with ThreadPoolExecutor(len(addresses)) as pool:
        jobs = [
            pool.submit(_fetch_share, address, generation, share, tensors, secret, limit)
            for address, share in zip(addresses, shares, strict=True)
        ]
        # A donor that failed shows as tensors that fail their check, and is not asked again.
        failed = [address for address, job in zip(addresses, jobs, strict=True) if job.exception()]
    others = [address for address in addresses if address not in failed]
    for index in _damaged(tensors, entries):
        _refetch(others, generation, index, tensors, entries, secret, limit)
    _confirm(addresses, generation, receiver, secret, limit)
    return decode(manifest["tree"], tensors)


def _read_one_sided(
    endpoints: Endpoints,
    addresses: list[str],
    generation: int,
    sizes: list[int],
    tensors: list[torch.Tensor],
    secret: str,
    timeout: float,
) -> set[int]:
    """Return the numbers of the tensors that came this way."""
    from keepstep.runtime import one_sided

    readers = endpoints.take_readers(min(len(addresses), sum(size > 0 for size in sizes)))
    shares = share_out(sizes, len(readers)) if readers else []
    arrived = set()
    problems = [] if readers or not any(sizes) else ["no endpoint is ready"]
    for share, problem in one_sided.take(
        readers, addresses, generation, shares, tensors, secret, timeout
    ):
        arrived.update([] if problem else share)
        problems += [problem] if problem else []
    if problems:
        print(f"keepstep: state comes over TCP: {'; '.join(problems)}", file=sys.stderr, flush=True)
    return arrived


def _agreed_manifest(
    addresses: list[str], generation: int, digest: str, secret: str, timeout: float
) -> dict[str, Any]:
    problems = []
    for address in addresses:
        try:
            with client(address, secret, timeout) as connection:
                manifest = bytes(connection.read(f"state/{generation}/manifest"))
        except (TransferError, AuthenticationError) as error:
            problems.append(str(error))
            continue
        if digest_of(manifest) == digest:
            found: dict[str, Any] = json.loads(manifest)
            return found
        problems.append(f"{address} offers {digest_of(manifest)[:12]}, agreed is {digest[:12]}")
    raise CorruptStateError(f"no donor has the agreed state: {'; '.join(problems)}")


def share_out(sizes: list[int], parts: int) -> list[list[int]]:
    """Return which tensors each part takes, so that all have about the same number of bytes.

    A pure function: every process finds the same. Tensors without bytes are in no part.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if sizes[index]:
            lightest = loads.index(min(loads))
            shares[lightest].append(index)
            loads[lightest] += sizes[index]
    return shares


def _fetch_share(
    address: str,
    generation: int,
    share: list[int],
    tensors: list[torch.Tensor],
    secret: str,
    timeout: float,
) -> None:
    if share:
        with client(address, secret, timeout) as connection:
            names = ",".join(map(str, share))
            buffers = [buffer_of(tensors[index]) for index in share]
            connection.read_into(f"state/{generation}/tensors/{names}", buffers)


def _is_right(tensor: torch.Tensor, entry: dict[str, Any]) -> bool:
    return bool(hashlib.sha256(buffer_of(tensor)).hexdigest() == entry["sha256"])


def _damaged(tensors: list[torch.Tensor], entries: list[dict[str, Any]]) -> list[int]:
    pairs = enumerate(zip(tensors, entries, strict=True))
    return [index for index, (tensor, entry) in pairs if not _is_right(tensor, entry)]


def _refetch(
    addresses: list[str],
    generation: int,
    index: int,
    tensors: list[torch.Tensor],
    entries: list[dict[str, Any]],
    secret: str,
    timeout: float,
) -> None:
    for address in addresses:
        try:
            _fetch_share(address, generation, [index], tensors, secret, timeout)
        except (TransferError, AuthenticationError):
            continue
        if _is_right(tensors[index], entries[index]):
            return
    raise CorruptStateError(f"no donor has tensor {index} as agreed")


def _confirm(
    addresses: list[str], generation: int, receiver: int, secret: str, timeout: float
) -> None:
    for address in addresses:
        with client(address, secret, timeout) as connection:
            connection.read(f"state/{generation}/done/{receiver}")


def fetch_payload(addresses: list[str], name: str, digest: str, secret: str, timeout: float) -> Any:
    """Return the replicated state of a snapshot from the first vault that has it undamaged.

    Raises:
        CorruptStateError: no vault has it as it was when the ranks agreed.
        AbsentError: every vault says that it does not have it.
    """
    problems, absent = [], 0
    for address in addresses:
        try:
            with client(address, secret, timeout + OPEN_WITHIN) as connection:
                return parse_payload(connection.read(name), digest)
        except (TransferError, AuthenticationError, CorruptStateError) as error:
            problems.append(str(error))
            absent += isinstance(error, AbsentError)
    if absent == len(addresses):
        raise AbsentError("; ".join(problems) or f"nobody keeps {name}")
    raise CorruptStateError("; ".join(problems))


def parse_payload(data: bytearray, digest: str) -> Any:
    """Return the state in a snapshot file, if manifest and tensors match ``digest``.

    Raises:
        CorruptStateError: they do not.
    """
    view = memoryview(data)
    size = int.from_bytes(view[:8], "big")
    manifest_bytes = bytes(view[8 : 8 + size])
    if digest_of(manifest_bytes) != digest:
        raise CorruptStateError("the snapshot's manifest is not the agreed one")
    manifest = json.loads(manifest_bytes)
    tensors = empty_tensors(manifest)
    start = 8 + size
    wanted = sum(buffer_of(tensor).nbytes for tensor in tensors)
    if len(view) - start != wanted:
        raise CorruptStateError(f"the snapshot holds {len(view) - start} bytes, wanted {wanted}")
    for tensor in tensors:
        buffer = buffer_of(tensor)
        buffer[:] = view[start : start + buffer.nbytes]
        start += buffer.nbytes
    if _damaged(tensors, manifest["tensors"]):
        raise CorruptStateError("the snapshot's tensors are damaged")
    return decode(manifest["tree"], tensors)
