"""One-sided reads between real processes with nixl; whatever fails comes over TCP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

from keepstep.cli import run
from keepstep.exit_codes import ExitCode
from keepstep.runtime import one_sided
from keepstep.runtime.config import transport_asked
from keepstep.runtime.exchange import Offer, fetch_state
from keepstep.runtime.group import Groups
from keepstep.runtime.one_sided import Endpoints, Giver
from keepstep.runtime.state import Encoded, digest_of, encode
from keepstep.runtime.transfer import ByteServer

SECRET = "5ec7e7"
GENERATION = 3
START = 60.0  # seconds for a process that imports torch and nixl on a busy machine
TIMEOUT = 2.0

needs_nixl = pytest.mark.skipif(not one_sided.is_installed(), reason="nixl is not installed")


def a_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "large": torch.rand(3000, 1000, generator=generator),
        "other": torch.rand(2000, 1000, generator=generator),
        "half": torch.rand(51, generator=generator).bfloat16(),
        "flags": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "step": 12,
    }


def digest(state: Any) -> str:
    return digest_of(encode(state).manifest())


# --- the process of a donor -----------------------------------------------------------------------


def donate(trouble: str) -> None:
    """Be a donor; ``trouble`` is what goes wrong when a receiver has asked for tensors."""
    encoded = encode(a_state())
    endpoints = Endpoints(readers=0)
    assert endpoints.wait(START)
    giver: Giver = {"": Giver, "damaged": DamagingGiver}.get(trouble, Giver)(endpoints)
    offer = Offer(receivers=1, giver=giver)
    offer.open(GENERATION, encoded, receivers=1)

    def provide(name: str) -> Any:
        answer = offer.provide(name)
        if trouble in {"dies", "stops"} and "/one-sided/take" in name:
            after = signal.SIGKILL if trouble == "dies" else signal.SIGSTOP
            threading.Timer(0.0, os.kill, (os.getpid(), after)).start()
            time.sleep(1.0 if trouble == "dies" else 0.0)
        return answer

    print(ByteServer("127.0.0.1", SECRET, provide).port, flush=True)
    print(f"done {offer.wait(START)} open {len(giver._open)}", flush=True)
    sys.stdin.read()


class DamagingGiver(Giver):
    """Gives a tensor with one wrong byte."""

    def provide(self, parts: list[str], tensors: list[torch.Tensor]) -> list[bytes] | None:
        wrong = [tensor.clone() for tensor in tensors]
        for tensor in wrong:
            if tensor.numel():
                tensor.view(-1).view(torch.uint8)[-1] ^= 1
        return super().provide(parts, wrong)


@contextlib.contextmanager
def donors(*troubles: str) -> Iterator[tuple[list[str], list[subprocess.Popen[str]]]]:
    code = "import sys; from tests.runtime.test_one_sided import donate; donate(sys.argv[1])"
    found = [
        subprocess.Popen(
            [sys.executable, "-c", code, trouble],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for trouble in troubles
    ]
    try:
        yield [f"127.0.0.1:{line(donor)}" for donor in found], found
    finally:
        for donor in found:
            donor.kill()
            donor.communicate()


def line(donor: subprocess.Popen[str]) -> str:
    assert donor.stdout is not None
    return donor.stdout.readline().strip()


def fetch(addresses: list[str], endpoints: Endpoints) -> Any:
    return fetch_state(
        addresses, GENERATION, digest(a_state()), SECRET, TIMEOUT, receiver=9, endpoints=endpoints
    )


def ready(readers: int) -> Endpoints:
    endpoints = Endpoints(readers)
    assert endpoints.wait(START)
    assert endpoints.giver is not None
    return endpoints


# --- with nixl ------------------------------------------------------------------------------------


@needs_nixl
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_state_is_read_out_of_the_donors_memory(
    count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoints = ready(count)
    with donors(*[""] * count) as (addresses, found):
        assert digest(fetch(addresses, endpoints)) == digest(a_state())
        assert all(line(donor) == "done True open 0" for donor in found)
    assert "over TCP" not in capfd.readouterr().err


@needs_nixl
@pytest.mark.slow
def test_a_tensor_that_arrives_damaged_comes_again_over_tcp() -> None:
    with donors("damaged", "") as (addresses, _):
        assert digest(fetch(addresses, ready(2))) == digest(a_state())


@needs_nixl
@pytest.mark.slow
def test_a_donor_that_dies_in_the_middle_costs_its_share_only() -> None:
    endpoints = ready(2)
    with donors("dies", "") as (addresses, _):
        shares, tensors, began = [[2, 4], [3]], encode(a_state()).tensors, time.monotonic()
        results = one_sided.take(
            endpoints.take_readers(2), addresses, GENERATION, shares, tensors, SECRET, TIMEOUT
        )
        assert time.monotonic() - began < 4 * TIMEOUT
    assert [bool(problem) for _, problem in results] == [True, False]


@needs_nixl
@pytest.mark.slow
def test_a_donor_that_stops_does_not_hang_the_receiver() -> None:
    endpoints = ready(1)
    with donors("stops") as (addresses, _):
        tensors, began = encode(a_state()).tensors, time.monotonic()
        one_sided.take(
            endpoints.take_readers(1), addresses, GENERATION, [[3]], tensors, SECRET, TIMEOUT
        )
        assert time.monotonic() - began < 4 * TIMEOUT


@needs_nixl
@pytest.mark.slow
def test_connections_of_endpoints_made_before_are_not_taken_for_gloos() -> None:
    store: Any = SimpleNamespace(port=0)
    groups = Groups(backend="gloo", device=torch.device("cpu"), store=store, wid=0)
    endpoints = ready(2)
    before = groups._peer_sockets()
    assert before, "nixl opens none any more: the wait before Ready can go"
    groups._note_sockets(before)
    assert groups._sockets == {}
    assert len(endpoints.take_readers(5)) == 2


# --- without --------------------------------------------------------------------------------------


def broken() -> Any:
    raise RuntimeError("no such plugin")


@contextlib.contextmanager
def local_donor(giver: Giver | None) -> Iterator[tuple[str, Encoded]]:
    encoded = encode(a_state())
    offer = Offer(receivers=1, giver=giver)
    offer.open(GENERATION, encoded, receivers=1)
    server = ByteServer("127.0.0.1", SECRET, offer.provide)
    try:
        yield f"127.0.0.1:{server.port}", encoded
    finally:
        server.close()


def test_a_receiver_that_could_make_no_endpoint_takes_the_state_over_tcp(
    capfd: pytest.CaptureFixture[str],
) -> None:
    endpoints = Endpoints(2, create=broken)
    assert endpoints.wait(TIMEOUT)
    with local_donor(None) as (address, _):
        assert digest(fetch([address], endpoints)) == digest(a_state())
    assert "over TCP: no endpoint is ready" in capfd.readouterr().err


@pytest.mark.parametrize("gives", [False, True])
def test_a_donor_without_an_endpoint_gives_over_tcp(gives: bool) -> None:
    nothing = Endpoints(0, create=broken)
    assert nothing.wait(TIMEOUT)
    fakes = Endpoints(1, create=object)  # an endpoint that fails at whatever is asked of it
    assert fakes.wait(TIMEOUT)
    with local_donor(Giver(nothing) if gives else None) as (address, _):
        assert digest(fetch([address], fakes)) == digest(a_state())


class FakeMemory:
    """Memory that describes itself."""

    def to_remote_buffer(self) -> Any:
        return self

    def serialize(self) -> bytes:
        return b"{}"


class FakeEndpoint:
    """An endpoint that notes what is registered."""

    def __init__(self) -> None:
        self.registered: list[FakeMemory] = []

    def bind(self) -> bytes:
        return b"peer"

    def register_memory(self, tensor: torch.Tensor) -> FakeMemory:
        self.registered.append(FakeMemory())
        return self.registered[-1]

    def unregister_memory(self, memory: FakeMemory) -> None:
        self.registered.remove(memory)


def fake_giver() -> tuple[Giver, FakeEndpoint]:
    endpoint = FakeEndpoint()
    endpoints = Endpoints(0, create=lambda: endpoint)
    assert endpoints.wait(TIMEOUT)
    return Giver(endpoints), endpoint


def test_a_buffer_is_released_when_its_reader_has_it() -> None:
    giver, endpoint = fake_giver()
    assert giver.provide(["take", "0"], [torch.ones(3)])
    assert len(endpoint.registered) == 1
    assert giver.provide(["end", "0"], []) == []
    assert endpoint.registered == []
    giver.finish()
    assert giver.provide(["take", "0"], [torch.ones(3)])


def test_a_buffer_that_may_still_be_read_is_kept_and_nothing_is_given_any_more() -> None:
    giver, endpoint = fake_giver()
    assert giver.provide(["take", "0"], [torch.ones(3)])
    giver.finish()
    assert giver.provide(["end", "0"], []) is None
    assert giver.provide(["take", "0"], [torch.ones(3)]) is None
    assert len(endpoint.registered) == 1


def test_tensors_survive_packing() -> None:
    tensors = [tensor for tensor in encode(a_state()).tensors if tensor.numel()]
    unpacked = one_sided._unpacked(one_sided._packed(tensors), tensors)
    assert digest(unpacked) == digest(tensors)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, "tcp"), ({"KEEPSTEP_TRANSPORT": "nixl"}, "nixl"), ({"KEEPSTEP_TRANSPORT": "tcp"}, "tcp")],
)
def test_the_transport_is_what_the_run_asks_for(environment: dict[str, str], wanted: str) -> None:
    assert transport_asked(environment) == wanted


def test_an_unknown_transport_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="KEEPSTEP_TRANSPORT=rdma: wanted one of auto, tcp, nixl"):
        transport_asked({"KEEPSTEP_TRANSPORT": "rdma"})


def test_keepstep_run_refuses_an_unknown_transport_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEEPSTEP_TRANSPORT", "rdma")
    with pytest.raises(typer.Exit) as caught:
        run._check_transport()
    assert caught.value.exit_code == ExitCode.USAGE
    assert "wanted one of auto, tcp, nixl" in capsys.readouterr().err
