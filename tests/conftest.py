"""What all tests share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The directory of this checkout."""
    return Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Take Ctrl-C, also where what runs this in the background has it ignored or blocked."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
