"""State of a donor's GPU to a receiver's GPU: through host memory as keepstep does, and directly.

    python docs/evidence/gpu/transport/measure.py OUT.json [--rounds N] [--sizes MIB ...]

Needs PyTorch 2.15 with CUDA, nixl, and keepstep with its benchmarks on the path. Donor and receiver
are processes of one machine; with two GPUs each has its own, with one they share it. Ways:

- ``tcp`` and ``nixl``: a whole transfer of keepstep: the donor copies to host memory, the receiver
  fetches manifest, bytes and the SHA-256 of every tensor, and copies to its GPU;
- ``direct``: one read of NIXL out of the donor's GPU memory into the receiver's, unchecked.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from keepstep.runtime import exchange
from keepstep.runtime.exchange import Offer, fetch_state
from keepstep.runtime.one_sided import Endpoints, Giver
from keepstep.runtime.state import digest_of, encode
from keepstep.runtime.transfer import ByteServer

SECRET, PATIENCE, TENSORS = "5ec7e7", 60.0, 64
WAYS = ("tcp", "nixl", "direct")


def device_of(number: int) -> torch.device:
    """A GPU; the CPU where there is none, to try the script."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def tensors_of(mebibytes: int, device: torch.device) -> list[torch.Tensor]:
    """A state of that size, equal in every process."""
    generator = torch.Generator(device).manual_seed(mebibytes)
    count = (mebibytes << 20) // 4 // TENSORS
    return [torch.rand(count, generator=generator, device=device) for _ in range(TENSORS)]


def serve(sizes: list[int]) -> None:
    """Be a donor: obey one line of JSON after another, and say how long each took."""
    device = device_of(0)
    states = {size: tensors_of(size, device) for size in sizes}
    endpoints = Endpoints(readers=0)
    endpoints.wait(PATIENCE)
    offers: dict[int, Offer] = {}
    server = ByteServer(
        "127.0.0.1", SECRET, lambda name: offers[int(name.split("/")[1])].provide(name)
    )
    answer({"address": f"127.0.0.1:{server.port}", "nixl": endpoints.giver is not None})
    kept: list[Any] = []
    for line in sys.stdin:
        asked = json.loads(line)
        wait_for_gpu()
        began = time.monotonic()
        if asked["do"] == "offer":
            state = encode(states[asked["size"]])
            offers[asked["generation"]] = Offer(1, Giver(endpoints))
            offers[asked["generation"]].open(asked["generation"], state, receivers=1)
            facts: dict[str, Any] = {"digest": digest_of(state.manifest())}
        else:
            transport, memory, facts = expose(torch.cat(states[asked["size"]]), device)
            kept.append((transport, memory))
        answer({**facts, "seconds": time.monotonic() - began})


def expose(buffer: torch.Tensor, device: torch.device) -> tuple[Any, Any, dict[str, str]]:
    """Register GPU memory for one reader."""
    transport = new_endpoint(device)
    memory = transport.register_memory(buffer)
    remote = memory.to_remote_buffer().serialize().decode()
    return (
        transport,
        memory,
        {
            "peer": base64.b64encode(transport.bind()).decode(),
            "buffer": remote,
        },
    )


def new_endpoint(device: torch.device) -> Any:
    """An endpoint that polls by itself."""
    import nixl  # noqa: F401  # its import sets up the logger that it writes with
    from torch.distributed._transport import new_transport

    return new_transport("nixl", device)


def answer(facts: dict[str, Any]) -> None:
    """Say one line."""
    print(json.dumps(facts), flush=True)


class Donor:
    """The donor's process."""

    def __init__(self, sizes: list[int]) -> None:
        """Start it on the first GPU."""
        command = [sys.executable, __file__, "-", "--serve", "--sizes", *map(str, sizes)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.facts = self.read()

    def ask(self, **facts: Any) -> dict[str, Any]:
        """Have something done."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(facts) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the next answer; lines of libraries are passed over."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError("the donor ended")


ARRIVED: list[int] = []  # tensors that came by one-sided reads; what did not came over TCP
_read_one_sided = exchange._read_one_sided


def _counted(*arguments: Any) -> Any:
    arrived = _read_one_sided(*arguments)
    ARRIVED.append(len(arrived))
    return arrived


exchange._read_one_sided = _counted


def wait_for_gpu() -> None:
    """Wait for what the GPU was told to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def through_host(way: str, size: int, number: int, donor: Donor, device: torch.device) -> Any:
    """A whole transfer of keepstep."""
    endpoints = Endpoints(readers=1) if way == "nixl" else None
    if endpoints is not None and not (endpoints.wait(PATIENCE) and endpoints.giver):
        raise RuntimeError("nixl cannot make an endpoint here")
    offered = donor.ask(do="offer", size=size, generation=number)
    began = time.monotonic()
    found = fetch_state(
        [donor.facts["address"]], number, offered["digest"], SECRET, PATIENCE, receiver=9,
        endpoints=endpoints,
    )  # fmt: skip
    fetched = time.monotonic() - began
    there = [tensor.to(device) for tensor in found]
    wait_for_gpu()
    whole = time.monotonic() - began + offered["seconds"]
    times = {"donor_s": offered["seconds"], "fetch_s": fetched, "whole_s": whole}
    return times | {"one_sided": ARRIVED[-1] if way == "nixl" else 0}, there


def directly(size: int, donor: Donor, device: torch.device) -> Any:
    """One read from GPU to GPU."""
    from torch.distributed._transport.nixl import NIXLRemoteBuffer

    offered = donor.ask(do="expose", size=size)
    endpoint = new_endpoint(device)
    buffer = torch.empty((size << 20) // 4, device=device)
    began = time.monotonic()
    endpoint.connect(base64.b64decode(offered["peer"]))
    memory = endpoint.register_memory(buffer)
    ready = time.monotonic() - began
    remote = NIXLRemoteBuffer.deserialize(offered["buffer"].encode())
    endpoint.read(memory.to_mutable_view(), remote)
    wait_for_gpu()
    whole = time.monotonic() - began
    facts = {"donor_s": offered["seconds"], "ready_s": ready, "whole_s": whole}
    return facts, list(buffer.split(buffer.numel() // TENSORS))


def main() -> None:
    """Measure, write every time, print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024], help="MiB")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.sizes)
        return
    gpus = torch.cuda.device_count()
    device = device_of(gpus - 1)
    donor = Donor(options.sizes)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if gpus else "none",
        "gpus": gpus,
        "donor": donor.facts,
        "runs": [],
    }
    for number in range(options.rounds):
        for size in options.sizes:
            for way in WAYS:
                run: dict[str, Any] = {"round": number, "mib": size, "way": way}
                try:
                    place = 1 + len(report["runs"])
                    facts, there = (
                        directly(size, donor, device)
                        if way == "direct"
                        else through_host(way, size, place, donor, device)
                    )
                    same = zip(there, tensors_of(size, device), strict=True)
                    run |= facts | {"equal": all(torch.equal(*pair) for pair in same)}
                except Exception as error:
                    run["error"] = f"{type(error).__name__}: {error}"
                report["runs"].append(run)
                options.out.write_text(json.dumps(report, indent=1))
                print(json.dumps(run), flush=True)
    for size in options.sizes:
        for way in WAYS:
            times = [
                run["whole_s"]
                for run in report["runs"]
                if run["mib"] == size and run["way"] == way and run.get("equal")
            ]
            if times:
                middle = statistics.median(times)
                print(
                    f"{size} MiB {way}: {middle:.4f} s ({min(times):.4f} to {max(times):.4f}), "
                    f"{size / 1024 / middle:.2f} GiB/s, {len(times)} runs"
                )
    os._exit(0)  # endpoints that poll would be waited for


if __name__ == "__main__":
    main()
