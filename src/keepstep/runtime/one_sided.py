"""State by one-sided reads: the receiver takes it out of the donor's memory, without its CPU.

PyTorch 2.15's transport (``torch.distributed._transport``) with the backend nixl. Only bytes come
this way: manifest, digests and whatever fails here are the business of ``exchange``, over TCP.

What is measured about torch 2.15.0 with nixl 1.5.1 and decides the shape of this file:

- An endpoint takes 0.4 s and more to make and can read from one peer in its life. All are made
  ahead of time, in the background, and none is made again: a process receives this way once.
  Making one opens TCP connections, so it has to end before gloo's are looked for (``group``).
- With a progress thread an endpoint polls without pause, at the cost of a core. There is none;
  a donor makes progress in a thread of its own while receivers read, and only then.
- Every registered tensor costs milliseconds to describe and to read. A donor copies what a
  receiver asks for into one buffer, which also keeps live memory out of reach of late readers.
- A timeout cancels nothing. Buffers of a read that failed are never used again, at either end.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.transfer import ByteClient, client

READ_ENDPOINTS = 2  # donors that a receiver reads from at the same time
ALIGNMENT = 64  # bytes; a tensor is a view of the buffer, so it has to begin at a multiple
CHUNK = 16 << 20  # bytes a read: between two of them a lost donor is noticed
POLL = 0.0005  # seconds between two looks at a read in progress


class OneSidedError(Exception):
    """A one-sided transfer did not succeed; TCP can still."""


def is_installed() -> bool:
    """Return whether this process can import nixl."""
    return importlib.util.find_spec("nixl") is not None


def _new_endpoint() -> Any:
    import nixl  # noqa: F401  (sets the level of its logger, which writes to standard output)
    from torch.distributed._transport import new_transport

    if "NIXL_LOG_LEVEL" not in os.environ:
        logging.getLogger("nixl").setLevel(logging.WARNING)
    return new_transport("nixl", "cpu", enable_prog_thread=False)


class Endpoints:
    """The endpoints of this process: one to give, some to read."""

    def __init__(self, readers: int, create: Callable[[], Any] = _new_endpoint) -> None:
        """Begin to make one endpoint to give and ``readers`` to read, in the background."""
        self._lock = threading.Lock()
        self._giver: Any = None
        self._readers: list[Any] = []
        self._made = threading.Event()
        arguments = (readers, create)
        threading.Thread(
            target=self._make, args=arguments, name="keepstep-one-sided", daemon=True
        ).start()

    def _make(self, readers: int, create: Callable[[], Any]) -> None:
        # A process without endpoints gives and takes over TCP, whatever the reason.
        with contextlib.suppress(Exception):
            for _ in range(readers):
                endpoint = create()
                with self._lock:
                    self._readers.append(endpoint)
            self._giver = create()
        self._made.set()

    def wait(self, timeout: float) -> bool:
        """Return whether making has ended, waiting ``timeout`` seconds at most."""
        return self._made.wait(timeout)

    @property
    def giver(self) -> Any:
        """The endpoint to give with, None while or if there is none."""
        return self._giver

    def take_readers(self, count: int) -> list[Any]:
        """Hand over up to ``count`` fresh endpoints, without waiting for any."""
        with self._lock:
            taken, self._readers = self._readers[:count], self._readers[count:]
        return taken


class Giver:
    """A donor's side: buffers that receivers read from."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Give with the endpoint of ``endpoints`` as soon as it is there."""
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, Any] = {}
        self._is_spent = False

    def provide(self, parts: list[str], tensors: list[torch.Tensor]) -> list[bytes] | None:
        """Answer ``take/I,J,..`` (description of a buffer) or ``end/N`` (it was read)."""
        if self._is_spent or self._endpoints.giver is None:
            return None
        if parts[0] == "take":
            return [self._describe([tensors[int(index)] for index in parts[1].split(",")])]
        if parts[0] == "end":
            self._release(int(parts[1]))
            return []
        return None

    def finish(self) -> None:
        """Give nothing more in this generation.

        A receiver that did not say that it has read may still have a request under way. Its buffer
        is kept, and so that the request is never served from other memory, nor is any later one.
        """
        with self._lock:
            self._is_spent = self._is_spent or bool(self._open)

    def _describe(self, tensors: list[torch.Tensor]) -> bytes:
        endpoint = self._endpoints.giver
        buffer = _packed(tensors)
        memory = endpoint.register_memory(buffer)
        with self._lock:
            number = next(self._numbers)
            self._open[number] = memory
            if len(self._open) == 1:
                threading.Thread(target=self._progress, args=(endpoint,), daemon=True).start()
        body = {
            "number": number,
            "peer": base64.b64encode(endpoint.bind()).decode(),
            "buffer": memory.to_remote_buffer().serialize().decode(),
        }
        return json.dumps(body).encode()

    def _release(self, number: int) -> None:
        with self._lock:
            memory = self._open.pop(number)
        self._endpoints.giver.unregister_memory(memory)

    def _progress(self, endpoint: Any) -> None:
        """Let connections and reads that need this side make progress while there are readers.

        torch's transport has no call for it (2.15.0); without a progress thread, asking nixl for
        notifications is what drives UCX.
        """
        while not self._is_spent:
            with self._lock:
                if not self._open:
                    return
            with contextlib.suppress(Exception):
                endpoint._call(endpoint._agent.get_new_notifs, None)
            time.sleep(POLL)


def take(
    endpoints: list[Any],
    addresses: list[str],
    generation: int,
    shares: list[list[int]],
    tensors: list[torch.Tensor],
    secret: str,
    timeout: float,
) -> list[tuple[list[int], str]]:
    """Replace ``tensors`` by what was read from the donors, a share from each; unchecked.

    Args:
        endpoints: one for each share, to be used by nobody else.
        addresses: byte servers of the donors.
        generation: the generation being formed.
        shares: numbers of the tensors to take from each donor.
        tensors: dtypes and shapes; those that arrive are replaced.
        secret: the job's secret.
        timeout: seconds without progress until a read is given up.

    Returns:
        Every share with the reason why it did not arrive, empty if it did.
    """
    readers = [
        _Reader(endpoint, f"state/{generation}/one-sided", [tensors[index] for index in share])
        for endpoint, share in zip(endpoints, shares, strict=True)
    ]
    for reader, address, share in zip(readers, addresses, shares, strict=False):
        reader.start(address, share, secret, timeout)
    results = []
    for reader, share in zip(readers, shares, strict=True):
        problem = reader.wait(timeout)
        results.append((share, problem))
        if not problem:
            for index, tensor in zip(share, reader.arrived, strict=True):
                tensors[index] = tensor
    return results


class _Reader:
    """One read from one donor, in a thread that is left alone when it makes no progress."""

    def __init__(self, endpoint: Any, path: str, like: list[torch.Tensor]) -> None:
        self._endpoint, self._path, self._like = endpoint, path, like
        self._thread: threading.Thread | None = None
        self._moved = time.monotonic()
        self._problem = ""
        self.arrived: list[torch.Tensor] = []

    def start(self, address: str, share: list[int], secret: str, timeout: float) -> None:
        arguments = (address, share, secret, timeout)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> str:
        """Return why the tensors did not arrive; nothing if they did."""
        assert self._thread is not None
        while self._thread.is_alive():
            if time.monotonic() - self._moved > timeout:
                return f"no progress for {timeout:g} s"
            self._thread.join(0.05)
        return self._problem

    def _run(self, address: str, share: list[int], secret: str, timeout: float) -> None:
        try:
            with client(address, secret, timeout) as control:
                asked = f"{self._path}/take/{','.join(map(str, share))}"
                offer = json.loads(control.read(asked))
                buffer = self._read(offer, control, timeout)
                control.read(f"{self._path}/end/{offer['number']}")
            self.arrived = _unpacked(buffer, self._like)
        except Exception as error:  # of libraries that are not ours; there is still TCP
            self._problem = f"{address}: {type(error).__name__}: {error}"

    def _read(self, offer: dict[str, Any], control: ByteClient, timeout: float) -> torch.Tensor:
        from torch.distributed._transport.nixl import NIXLRemoteBuffer

        remote = NIXLRemoteBuffer.deserialize(offer["buffer"].encode())
        size = _offsets(self._like)[-1]
        if remote.length != size:
            raise OneSidedError(f"the donor offers {remote.length} bytes, wanted {size}")
        buffer = torch.empty(size, dtype=torch.uint8)
        self._endpoint.connect(base64.b64decode(offer["peer"]))
        memory = self._endpoint.register_memory(buffer)
        for start in range(0, size, CHUNK):
            self._moved = time.monotonic()
            length = min(CHUNK, size - start)
            part = replace(remote, address=remote.address + start, length=length)
            view = memory.to_mutable_view(start, length)
            _wait(self._endpoint.read(view, part, async_op=True), control, timeout)
        self._endpoint.close()
        return buffer


def _wait(work: Any, control: ByteClient, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not work.is_completed():
        if control.is_closed():
            raise OneSidedError("the donor is gone")
        if time.monotonic() > deadline:
            raise OneSidedError(f"no progress for {timeout:g} s")
        time.sleep(POLL)
    if work.exception() is not None:
        raise OneSidedError(str(work.exception()))


def _offsets(tensors: list[torch.Tensor]) -> list[int]:
    """Return where each tensor begins in a buffer of all of them, and the buffer's size."""
    sizes = (-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors)
    return list(itertools.accumulate(sizes, initial=0))


def _packed(tensors: list[torch.Tensor]) -> torch.Tensor:
    offsets = _offsets(tensors)
    buffer = torch.empty(offsets[-1], dtype=torch.uint8)
    raw = buffer_of(buffer)
    for tensor, start in zip(tensors, offsets, strict=False):
        raw[start : start + tensor.nbytes] = buffer_of(tensor)
    return buffer


def _unpacked(buffer: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(like, _offsets(like), strict=False)
    ]
