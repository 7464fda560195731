"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.virtual_hosts import VirtualHost, virtual_hosts, why_not


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The directory of this checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[VirtualHost]]:
    """Two hosts on this machine."""
    problem = why_not()
    if problem is not None:
        pytest.skip(f"several hosts on one machine: {problem}")
    with virtual_hosts(2) as made:
        yield made


def pytest_configure() -> None:
    """Take Ctrl-C, also where what runs this in the background has it ignored or blocked."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
