"""State from several donors, in threads of this process: only what passes its check is taken."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from keepstep.runtime import exchange
from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.exchange import (
    CorruptStateError,
    Offer,
    fetch_payload,
    fetch_state,
    parse_payload,
)
from keepstep.runtime.handshake import AuthenticationError
from keepstep.runtime.replicas import payload_parts
from keepstep.runtime.state import Encoded, digest_of, encode
from keepstep.runtime.transfer import AbsentError, ByteClient, ByteServer, TransferError, client

SECRET = "5ec7e7"
GENERATION = 3
LARGE = 2  # place of "large" among the tensors, in the order of their names


def a_state() -> dict[str, Any]:
    """A small model: tensors of several sizes, an empty one and a scalar."""
    torch.manual_seed(0)
    return {
        "large": torch.randn(300, 40),
        "small": torch.randn(7),
        "half": torch.randn(50).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
        "step": 12,
        "groups": [{"lr": 0.1, "params": (0, 1)}],
    }


@dataclass
class Donor:
    """One donor: what it offers and which requests it saw."""

    encoded: Encoded
    offer: Offer = field(default_factory=lambda: Offer(receivers=1))
    asked: list[str] = field(default_factory=list)
    server: ByteServer | None = None

    def provide(self, name: str) -> Any:
        """Answer like a worker."""
        self.asked.append(name)
        return self.offer.provide(name)

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    def asked_for(self, what: str) -> bool:
        """Whether a request began like this."""
        return any(name.startswith(f"state/{GENERATION}/{what}") for name in self.asked)


@contextlib.contextmanager
def donors(*states: dict[str, Any], secret: str = SECRET) -> Iterator[list[Donor]]:
    found = [Donor(encode(state)) for state in states]
    for donor in found:
        donor.server = ByteServer("127.0.0.1", secret, donor.provide)
        donor.offer.open(GENERATION, donor.encoded, receivers=1)
    try:
        yield found
    finally:
        for donor in found:
            assert donor.server is not None
            donor.server.close()


def digest(state: Any) -> str:
    return digest_of(encode(state).manifest())


def fetch(found: list[Donor], wanted: str, *, secret: str = SECRET) -> Any:
    addresses = [donor.address for donor in found]
    return fetch_state(addresses, GENERATION, wanted, secret, 2.0, receiver=9)


def spoil(donor: Donor, index: int) -> None:
    """Change one byte of a tensor after the manifest was made."""
    buffer_of(donor.encoded.tensors[index])[-1] ^= 0x40


def test_the_state_comes_from_all_donors_and_is_equal() -> None:
    with donors(a_state(), a_state()) as found:
        received = fetch(found, digest(a_state()))
        assert digest(received) == digest(a_state())
        assert all(donor.asked_for("tensors") for donor in found)
        assert all(donor.offer.wait(2.0) for donor in found)


def test_a_state_without_tensors_needs_no_donation_of_tensors() -> None:
    with donors({"step": 1}) as found:
        assert fetch(found, digest({"step": 1})) == {"step": 1}
        assert not found[0].asked_for("tensors")


def test_more_donors_than_tensors_is_fine() -> None:
    small = {"x": torch.ones(3)}
    with donors(small, small, small) as found:
        assert digest(fetch(found, digest(small))) == digest(small)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_tensor_altered_after_the_manifest_is_taken_from_the_other_donor(bad: int) -> None:
    with donors(a_state(), a_state()) as found:
        for index, tensor in enumerate(found[bad].encoded.tensors):
            if tensor.numel():
                spoil(found[bad], index)
        assert digest(fetch(found, digest(a_state()))) == digest(a_state())


def test_a_donor_that_does_not_answer_is_named_and_the_state_comes_from_the_others() -> None:
    with donors(a_state(), a_state()) as found, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        addresses = [found[0].address, address, found[1].address]
        with pytest.raises(TransferError) as failure:
            fetch_state(addresses, GENERATION, digest(a_state()), SECRET, 0.1, receiver=9)
        assert failure.value.address == address
        assert found[0].offer.wait(2.0)  # all tensors were there: the first donor was told


def test_a_server_that_cannot_start_a_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with donors(a_state(), a_state()) as found:
        monkeypatch.setattr("keepstep.runtime.transfer.threading.Thread", NoThread)
        with pytest.raises(TransferError) as failure:
            ByteClient(found[0].address, SECRET, 2.0)
        assert failure.value.address == found[0].address
        monkeypatch.undo()
        ByteClient(found[0].address, SECRET, 2.0).close()


def test_a_donor_with_another_state_is_skipped() -> None:
    other = {**a_state(), "step": 13, "small": torch.zeros(7)}
    with donors(other, a_state()) as found:
        assert digest(fetch(found, digest(a_state()))) == digest(a_state())


def test_a_tensor_that_no_donor_has_as_agreed_is_refused() -> None:
    with donors(a_state(), a_state()) as found:
        for donor in found:
            spoil(donor, LARGE)
        with pytest.raises(CorruptStateError, match=f"tensor {LARGE}"):
            fetch(found, digest(a_state()))


def test_when_nobody_has_the_agreed_state_all_are_named() -> None:
    with donors(a_state(), a_state()) as found:
        with pytest.raises(CorruptStateError, match="no donor") as caught:
            fetch(found, "0" * 64)
        assert all(donor.address in str(caught.value) for donor in found)
        assert not any(donor.asked_for("tensors") for donor in found)


def test_a_receiver_with_another_secret_gets_nothing() -> None:
    with donors(a_state()) as found:
        with pytest.raises((CorruptStateError, AuthenticationError, TransferError)):
            fetch(found, digest(a_state()), secret="another")
        assert found[0].asked == []


def test_a_donor_of_another_job_is_skipped_for_the_manifest() -> None:
    with donors(a_state()) as ours, donors(a_state(), secret="another") as theirs:
        found = exchange._agreed_manifest(
            [theirs[0].address, ours[0].address], GENERATION, digest(a_state()), SECRET, 2.0
        )
        assert found == json.loads(encode(a_state()).manifest())


def test_a_share_of_very_many_tensors_is_asked_for_in_one_connection() -> None:
    received, sent, count = torch.zeros(1), buffer_of(torch.ones(1)), 12_000
    with byte_server(lambda name: [sent] * count) as address:
        tensors, share = [received] * 10_001, [10_000] * count  # numbers of five digits
        exchange._fetch_share(address, GENERATION, share, tensors, SECRET, 2.0)
    assert float(received) == 1.0


def test_shares_of_donors_are_about_equal_and_whole() -> None:
    sizes = [100, 0, 1, 50, 49, 2, 100]
    shares = exchange.share_out(sizes, 3)
    assert sorted(index for share in shares for index in share) == [0, 2, 3, 4, 5, 6]
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= 2


# --- what a donor answers -------------------------------------------------------------------------


def test_an_offer_that_is_shut_or_of_another_generation_is_absent() -> None:
    offer = Offer(receivers=1)
    offer.open(GENERATION, encode(a_state()), receivers=1)
    assert offer.provide(f"state/{GENERATION}/manifest") is not None
    assert offer.provide(f"state/{GENERATION - 1}/manifest") is None
    offer.shut()
    assert offer.provide(f"state/{GENERATION}/manifest") is None


@pytest.mark.parametrize("name", ["", "state", "state/3", "rank/0/1", f"state/{GENERATION}/other"])
def test_an_unknown_name_is_absent(name: str) -> None:
    offer = Offer(receivers=1)
    offer.open(GENERATION, encode(a_state()), receivers=1)
    assert offer.provide(name) is None


def test_a_request_that_comes_early_waits_for_the_offer() -> None:
    offer, answers = Offer(receivers=1), list[Any]()
    asking = threading.Thread(
        target=lambda: answers.append(offer.provide(f"state/{GENERATION}/manifest"))
    )
    asking.start()
    offer.open(GENERATION, encode(a_state()), receivers=1)
    asking.join(5.0)
    assert answers == [[encode(a_state()).manifest()]]


def test_a_donor_waits_for_every_receiver_and_counts_each_once() -> None:
    offer = Offer(receivers=0)
    offer.open(GENERATION, encode(a_state()), receivers=2)
    for _ in range(3):
        offer.provide(f"state/{GENERATION}/done/5")
    assert not offer.wait(0.0)
    offer.provide(f"state/{GENERATION}/done/6")
    assert offer.wait(0.0)


# --- snapshots ------------------------------------------------------------------------------------


def payload(state: dict[str, Any]) -> bytearray:
    encoded = encode(state)
    return bytearray(b"".join(bytes(part) for part in payload_parts(encoded, encoded.manifest())))


def without_empty_tensors() -> dict[str, Any]:
    state = a_state()
    del state["empty"]
    return state


@contextlib.contextmanager
def vaults(*blobs: bytes | bytearray | None) -> Iterator[list[str]]:
    def provider(blob: bytes | bytearray | None) -> Any:
        return lambda name: None if blob is None or name != "snapshot/4/payload" else [bytes(blob)]

    servers = [ByteServer("127.0.0.1", SECRET, provider(blob)) for blob in blobs]
    try:
        yield [f"127.0.0.1:{server.port}" for server in servers]
    finally:
        for server in servers:
            server.close()


def test_a_snapshot_is_read_back() -> None:
    state = without_empty_tensors()
    assert digest(parse_payload(payload(state), digest(state))) == digest(state)


def test_a_snapshot_with_an_empty_tensor_is_read_back() -> None:
    assert digest(parse_payload(payload(a_state()), digest(a_state()))) == digest(a_state())


def test_a_snapshot_of_another_state_is_refused() -> None:
    with pytest.raises(CorruptStateError, match="manifest"):
        parse_payload(payload(without_empty_tensors()), "0" * 64)


def test_a_snapshot_with_a_flipped_bit_is_refused() -> None:
    state = without_empty_tensors()
    data = payload(state)
    for place in range(0, len(data), 997):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptStateError):
            parse_payload(damaged, digest(state))


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1, -4096])
def test_a_snapshot_that_was_cut_short_is_refused_as_corrupt(length: int) -> None:
    state = without_empty_tensors()
    with pytest.raises(CorruptStateError):
        parse_payload(payload(state)[:length], digest(state))


def test_a_snapshot_comes_from_the_first_vault_that_has_it_undamaged() -> None:
    state = without_empty_tensors()
    damaged = payload(state)
    damaged[-1] ^= 1
    with vaults(None, damaged, payload(state)) as addresses:
        received = fetch_payload(
            ["127.0.0.1:1", *addresses], "snapshot/4/payload", digest(state), SECRET, 2.0
        )
        assert digest(received) == digest(state)


def test_a_snapshot_that_nobody_has_is_refused() -> None:
    with vaults(None) as addresses:
        with pytest.raises(AbsentError, match="does not have"):
            fetch_payload(addresses, "snapshot/4/payload", "0" * 64, SECRET, 2.0)
        unreachable = ["127.0.0.1:1", *addresses]  # perhaps that one has it
        with pytest.raises(CorruptStateError, match="does not have"):
            fetch_payload(unreachable, "snapshot/4/payload", "0" * 64, SECRET, 2.0)
    with pytest.raises(AbsentError, match="nobody keeps"):
        fetch_payload([], "snapshot/4/payload", "0" * 64, SECRET, 2.0)


# --- transfer -------------------------------------------------------------------------------------


@contextlib.contextmanager
def byte_server(provide: Any) -> Iterator[str]:
    server = ByteServer("127.0.0.1", SECRET, provide)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


def test_bytes_arrive_whole_and_absent_names_are_told_without_ending_the_connection() -> None:
    large = bytes(range(256)) * 40_000
    blobs = {"a": [b"one", memoryview(b"two")], "large": [large], "nothing": []}
    with byte_server(blobs.get) as address, client(address, SECRET, 5.0) as connection:
        with pytest.raises(TransferError, match="does not have b"):
            connection.read("b")
        assert connection.read("a") == b"onetwo"
        assert connection.read("nothing") == b""
        assert connection.read("large") == large


def test_bytes_are_read_into_several_buffers() -> None:
    with byte_server({"a": [b"onetwo"]}.get) as address, client(address, SECRET, 5.0) as connection:
        one, two = bytearray(2), bytearray(4)
        connection.read_into("a", [memoryview(one), memoryview(two)])
        assert bytes(one + two) == b"onetwo"


def test_an_answer_of_unexpected_size_is_refused() -> None:
    with (
        byte_server({"a": [b"onetwo"]}.get) as address,
        client(address, SECRET, 5.0) as connection,
        pytest.raises(TransferError, match="6 bytes of a, wanted 5"),
    ):
        connection.read_into("a", [memoryview(bytearray(5))])


def test_another_secret_is_refused_before_anything_is_asked() -> None:
    asked: list[str] = []
    with (
        byte_server(lambda name: asked.append(name)) as address,
        pytest.raises((TransferError, AuthenticationError)),
    ):
        ByteClient(address, "another", 5.0).read("a")
    assert asked == []


def test_nobody_there_is_a_transfer_error() -> None:
    with byte_server({}.get) as address:
        pass
    with pytest.raises(TransferError, match="127"):
        ByteClient("127.0.0.1:1", SECRET, 1.0)
    assert address


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", ["state/x/manifest", f"state/{GENERATION}/tensors/99"])
def test_a_nonsensical_request_is_an_error_of_the_one_who_asks_only(name: str) -> None:
    with donors(a_state()) as found:
        with client(found[0].address, SECRET, 2.0) as asking, pytest.raises(TransferError):
            asking.read(name)
        with client(found[0].address, SECRET, 2.0) as asking:
            assert asking.read(f"state/{GENERATION}/manifest")
