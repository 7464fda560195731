"""Records of test-loads: found again, and worth nothing once something has changed."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.record import (
    Record,
    address_of,
    differences,
    identify,
    read_records,
    write_record,
)
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import Checkpoint

ENVIRONMENT: dict[str, Any] = {
    "executable": "/old/bin/python",
    "python": "3.11.7",
    "torch": {"version": "2.14.1", "git": "abc"},
    "packages": {"numpy": "2.0"},
}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def record_of(store: LocalStore, **changes: Any) -> Record:
    record = Record(
        address=address_of(store),
        identity=identify(store),
        environment=ENVIRONMENT,
        python="/old/bin/python",
        when="2026-11-29T20:00:00+00:00",
        verdict="pass",
        level="bytes",
        error="",
        bytes=98,
        digests={"w": "00"},
    )
    return dataclasses.replace(record, **changes)


def test_a_record_is_found_again_however_the_path_is_written(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    write_record(record_of(LocalStore(folder)))
    monkeypatch.chdir(folder.parent)
    (found,) = read_records(LocalStore(Path(folder.name)))
    assert found == record_of(LocalStore(folder))
    assert differences(found, identify(LocalStore(folder)), ENVIRONMENT) == []


def test_nothing_is_written_into_the_run(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint()
    before = sorted(os.listdir(folder))
    path = write_record(record_of(LocalStore(folder)))
    assert sorted(os.listdir(folder)) == before
    assert path.is_relative_to(tmp_path / "state" / "keepstep")


def test_one_record_an_interpreter_and_the_newest_first(checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    write_record(record_of(store, verdict="fail"))
    write_record(record_of(store))
    write_record(record_of(store, python="/new/bin/python", when="2026-11-30T01:00:00+00:00"))
    records = read_records(store)
    assert [(r.python, r.verdict) for r in records] == [
        ("/new/bin/python", "pass"),
        ("/old/bin/python", "pass"),
    ]


def test_a_damaged_record_proves_nothing(checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    path = write_record(record_of(store))
    whole = json.loads(path.read_text())
    without = {key: value for key, value in whole.items() if key != "verdict"}
    for text in ("", "[]", "{", json.dumps(without), json.dumps({**whole, "identity": None})):
        path.write_text(text)
        assert read_records(store) == []


def test_it_goes_stale_with_the_metadata(checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    record = record_of(store)
    (store.path / ".metadata").write_bytes(b"another")
    assert differences(record, identify(store), ENVIRONMENT) == ["its metadata has changed"]


@pytest.mark.parametrize("change", ["time", "size", "gone", "more"])
def test_it_goes_stale_with_a_data_file(change: str, checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    record = record_of(store)
    path = store.path / "__0_0.distcp"
    stat = path.stat()
    if change == "time":
        path.touch()
    elif change == "size":
        path.write_bytes(path.read_bytes() + b"0")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "gone":
        path.unlink()
    else:
        path = store.path / "__1_0.distcp"
        path.touch()
    assert differences(record, identify(store), ENVIRONMENT) == [
        f"data files have changed: {path.name}"
    ]


def test_the_note_of_a_downgrade_is_not_a_data_file(checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    record = record_of(store)
    (store.path / ".metadata.before-downgrade").touch()
    assert differences(record, identify(store), ENVIRONMENT) == []


def test_it_goes_stale_with_the_environment(checkpoint: Checkpoint) -> None:
    store = LocalStore(checkpoint())
    record, identity = record_of(store), identify(store)
    changed = {**ENVIRONMENT, "python": "3.11.8", "packages": {"numpy": "2.1"}}
    assert differences(record, identity, changed) == [
        "the environment has changed: packages, python"
    ]
    assert differences(record, identity, None) == ["/old/bin/python does not start here"]


def test_a_folder_without_metadata_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError, match="nothing to load"):
        identify(LocalStore(tmp_path))
