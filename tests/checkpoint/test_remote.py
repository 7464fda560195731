"""Checkpoints on object stores, with fsspec's memory file system in their place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from keepstep.checkpoint.downgrade import convert, put_in_place, undo
from keepstep.checkpoint.errors import CheckpointError, NotACheckpointError
from keepstep.checkpoint.inspection import inspect_store
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.status import find_status
from keepstep.checkpoint.store import LocalStore, RemoteStore, open_store
from keepstep.checkpoint.verify import verify
from tests.checkpoint.conftest import DATA


class Refused(Exception):
    """What botocore raises, and s3fs gives as the cause of its own error (see test_s3)."""

    response: ClassVar[dict[str, Any]] = {"Error": {"Code": "PreconditionFailed"}}


class ConditionalStore(MemoryFileSystem):  # type: ignore[misc]
    """A store with ETags that honours If-Match, in the way of S3 behind fsspec."""

    protocol = ("s3", "s3a")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options)
        if found["type"] == "file":
            found["ETag"] = hashlib.md5(self.cat_file(path)).hexdigest()
        return dict(found)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        expected = options.get("IfMatch")
        if expected is not None and self.info(path)["ETag"] != expected:
            raise OSError(22, "At least one of the pre-conditions did not hold") from Refused()
        super().pipe_file(path, value)


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def upload(system: Any, case: str, target: str, version: str = "2.15.0") -> None:
    for path in (DATA / f"torch-{version}" / case).iterdir():
        system.pipe_file(f"{target}/{path.name}", path.read_bytes())


def test_reading_is_as_from_a_folder(memory: Any) -> None:
    upload(memory, "dtensor2", "/run/step-1")
    store = open_store("memory://run/step-1")
    local = LocalStore(DATA / "torch-2.15.0" / "dtensor2")
    assert find_readers(store) == find_readers(local)
    assert inspect_store(store).metadata == inspect_store(local).metadata
    assert verify(store).checked == verify(local).checked


def test_downgrade_and_undo_on_a_store_without_conditions(memory: Any) -> None:
    upload(memory, "plain", "/run/step-1")
    before = {name: memory.cat_file(name) for name in memory.find("/run")}
    store = open_store("memory://run/step-1")
    for conversion in convert(store, "2.14"):
        put_in_place(store, conversion)
    assert find_readers(store).readers["2.14"] is True
    undo(store)
    assert {name: memory.cat_file(name) for name in memory.find("/run")} == before


def test_status_of_many_steps(memory: Any) -> None:
    upload(memory, "plain", "/run/step-1", "2.14.1")
    for step in range(2, 6):
        upload(memory, "plain", f"/run/step-{step}")
    found = find_status(open_store("memory://run"), "2.14")
    assert (found.behind, found.looked_at, found.steps) == (4, 5, 5)


def test_nothing_at_an_address(memory: Any) -> None:
    with pytest.raises(NotACheckpointError, match="nothing at this address"):
        find_readers(open_store("memory://nowhere"))


def test_the_store_itself_refuses_to_replace_what_somebody_else_wrote() -> None:
    system = ConditionalStore()
    system.store.clear()
    upload(system, "plain", "/bucket/step-1")
    store = RemoteStore("s3://bucket/step-1", system, "/bucket/step-1")
    assert store.conditional
    (made,) = convert(store, "2.14")
    upload(system, "noncontig", "/bucket/step-1")
    with pytest.raises(CheckpointError, match="written by somebody else"):
        put_in_place(store, made)
    (made,) = convert(store, "2.14")
    put_in_place(store, made)
    assert find_readers(store).readers["2.14"] is True
    undo(store)
    wanted = (DATA / "torch-2.15.0" / "noncontig" / ".metadata").read_bytes()
    assert store.read(".metadata", 0, 1 << 20) == wanted


def test_an_address_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        open_store("nosuchstore://bucket/step-1")
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
