"""State from donors to a receiver: over TCP and by one-sided reads, with one and with two donors.

Every trial is a whole ``fetch_state``: manifest, bytes, and the SHA-256 of every tensor. Donors and
receivers are processes of this machine. The ways take turns within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from keepstep.runtime.exchange import Offer, fetch_state
from keepstep.runtime.one_sided import Endpoints, Giver
from keepstep.runtime.state import Encoded, digest_of, encode
from keepstep.runtime.transfer import ByteServer

SECRET = "5ec7e7"
SIZES = (1, 16, 256)  # MiB
TENSORS = 64  # about what a small model with its optimizer has
WAYS = [(way, donors) for donors in (1, 2) for way in ("tcp", "nixl")]
PATIENCE = 60.0  # seconds; nothing fails here, a busy machine is slow


def state_of(mebibytes: int) -> Encoded:
    """A state of that size, equal in every process."""
    generator = torch.Generator().manual_seed(mebibytes)
    count = (mebibytes << 20) // 4 // TENSORS
    return encode([torch.rand(count, generator=generator) for _ in range(TENSORS)])


def serve() -> None:
    """Be a donor of every size: generation N is the state of N MiB."""
    torch.set_num_threads(1)
    endpoints = Endpoints(readers=0)
    endpoints.wait(PATIENCE)
    offers = {size: Offer(1, Giver(endpoints)) for size in SIZES}
    for size, offer in offers.items():
        offer.open(size, state_of(size), receivers=1)
    server = ByteServer("127.0.0.1", SECRET, lambda name: offers[_size(name)].provide(name))
    print(server.port, flush=True)
    sys.stdin.read()


def _size(name: str) -> int:
    return int(name.split("/")[1])


def receive(way: str, size: int, addresses: list[str], digest: str) -> float:
    """Return the seconds of one transfer; endpoints are made before, as a spare does."""
    endpoints = Endpoints(readers=len(addresses)) if way == "nixl" else None
    if endpoints is not None and not (endpoints.wait(PATIENCE) and endpoints.giver):
        raise RuntimeError("nixl cannot make an endpoint here")
    began = time.monotonic()
    fetch_state(addresses, size, digest, SECRET, PATIENCE, receiver=9, endpoints=endpoints)
    return time.monotonic() - began


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every trial, by size, way and number of donors."""
    command = [sys.executable, "-m", "benchmarks.transfer", "--serve"]
    donors = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    addresses = [f"127.0.0.1:{_port(donor)}" for donor in donors]
    digests = {size: digest_of(state_of(size).manifest()) for size in SIZES}
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for size in SIZES:
            shift = number % len(WAYS)
            for way, count in WAYS[shift:] + WAYS[:shift]:
                seconds = receive(way, size, addresses[:count], digests[size])
                found.setdefault(f"{size} {way} {count}", []).append(seconds)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for donor in donors:
        assert donor.stdin is not None
        donor.stdin.close()
        donor.wait(PATIENCE)
    return found


def _port(donor: subprocess.Popen[str]) -> int:
    assert donor.stdout is not None
    return int(donor.stdout.readline())


def report(found: dict[str, list[float]]) -> str:
    """Return a Markdown table: medians and quartiles, and the ratio of each round."""
    lines = [
        "| MiB | donors | TCP, s | NIXL, s | NIXL / TCP |",
        "|---|---|---|---|---|",
    ]
    for size in SIZES:
        for donors in (1, 2):
            tcp, nixl = (found[f"{size} {way} {donors}"] for way in ("tcp", "nixl"))
            ratios = [other / one for one, other in zip(tcp, nixl, strict=True)]
            cells = [spread(tcp), spread(nixl), spread(ratios)]
            lines.append(f"| {size} | {donors} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", help="write every single time here, as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    torch.set_num_threads(1)
    found: Any = measure(arguments.rounds)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    print(report(found))


if __name__ == "__main__":
    main()
