"""Garbage is collected in a step, not in a recovery."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from keepstep.runtime.garbage import Collection


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_is_held_until_it_is_released() -> None:
    collection = Collection()
    collection.hold()
    collection.hold()
    assert not gc.isenabled()
    collection.release()
    assert gc.isenabled()
    collection.release()
    assert gc.isenabled()


def test_what_the_script_has_switched_off_stays_off() -> None:
    collection = Collection()
    gc.disable()
    collection.hold()
    collection.release()
    assert not gc.isenabled()


def test_what_the_script_switches_off_while_it_is_held_stays_so_until_the_release() -> None:
    collection = Collection()
    collection.hold()
    gc.disable()
    collection.hold()
    collection.release()
    assert gc.isenabled()
