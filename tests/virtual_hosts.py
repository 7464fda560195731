"""Several hosts on one machine: network namespaces joined by a bridge in a namespace of its own.

Needs root and the ``ip`` command; ``why_not`` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualHost:
    """One namespace with one address; ``prefix`` runs a command in it."""

    name: str
    address: str
    switch: str
    port: str  # its end of the cable in the switch

    @property
    def prefix(self) -> list[str]:
        """Return what to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.name]

    def processes(self) -> list[int]:
        """Return what runs on this host."""
        listed = ["ip", "netns", "pids", self.name]
        found = subprocess.run(listed, check=True, capture_output=True, text=True)
        return [int(line) for line in found.stdout.split()]

    def cut_off(self) -> None:
        """Unplug the cable: packets vanish, nobody is told."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def plug_in(self) -> None:
        """Plug it in again."""
        _ip("-n", self.switch, "link", "set", self.port, "up")


def why_not() -> str | None:
    """Return why namespaces cannot be made here, None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the ip command is missing (Debian package iproute2)"
    probe = f"ks-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    _ip("netns", "del", probe)
    return None


@contextlib.contextmanager
def virtual_hosts(count: int) -> Iterator[list[VirtualHost]]:
    """Make ``count`` hosts that reach each other, and remove them afterwards."""
    tag = f"ks{os.getpid() % 100000}"
    switch = f"{tag}-switch"
    namespaces = [switch]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        hosts = []
        for number in range(count):
            host = VirtualHost(
                name=f"{tag}-{number}",
                address=f"10.91.0.{number + 1}",
                switch=switch,
                port=f"port{number}",
            )
            namespaces.append(host.name)
            _add_host(host)
            hosts.append(host)
        yield hosts
    finally:
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _add_host(host: VirtualHost) -> None:
    _ip("netns", "add", host.name)
    _ip("-n", host.name, "link", "set", "lo", "up")
    _ip("link", "add", "eth0", "netns", host.name, "type", "veth", "peer", "name", host.port,
        "netns", host.switch)  # fmt: skip
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
    _ip("-n", host.name, "link", "set", "eth0", "up")
    _ip("-n", host.switch, "link", "set", host.port, "master", "bridge")
    _ip("-n", host.switch, "link", "set", host.port, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
