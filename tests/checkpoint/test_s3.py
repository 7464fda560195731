"""Checkpoints on a real S3 server on the loopback interface: what is asked for, and who wins."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from benchmarks.checkpoint.s3_server import Request, Server, s3_server
from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.downgrade import KEPT, RECORD, convert, put_in_place, undo
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.inspection import inspect_store
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.rewrite import rewrite
from keepstep.checkpoint.status import find_status
from keepstep.checkpoint.store import RemoteStore, open_store
from keepstep.checkpoint.verify import verify
from keepstep.exit_codes import ExitCode
from tests.checkpoint.conftest import DATA
from tests.checkpoint.stored_data import data_files

OURS = (DATA / "torch-2.15.0" / "plain" / ".metadata").read_bytes()
THEIRS = (DATA / "torch-2.15.0" / "noncontig" / ".metadata").read_bytes()
STEP = "bucket/run/step-100"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        s3_server(tmp_path_factory.mktemp("s3") / "log") as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in running.variables().items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        yield running
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def system(server: Server) -> Iterator[Any]:
    """Give another client than the one under test, with nothing remembered."""
    client = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    yield client
    if client.exists("bucket/run"):
        client.rm("bucket/run", recursive=True)


def upload(system: Any, case: str, version: str = "2.15.0") -> dict[str, bytes]:
    paths = (DATA / f"torch-{version}" / case).iterdir()
    files = {f"{STEP}/{path.name}": path.read_bytes() for path in paths}
    system.pipe(files)
    return files


def stored(system: Any) -> dict[str, bytes]:
    return {path: system.cat_file(path) for path in system.find(STEP)}


def reads(server: Server) -> list[Request]:
    """Return the requests for content, and check that each was for a range of bytes."""
    found = [each for each in server.requests() if each.method == "GET" and not each.query]
    for each in found:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", each.range or "the whole object")
        assert asked is not None, each
        assert each.status in (206, 404)
        assert each.status == 404 or each.sent <= int(asked[2]) - int(asked[1]) + 1
    return found


def test_readers_reads_a_few_kilobytes_of_metadata_of_any_size(system: Any, server: Server) -> None:
    content = metadata(5_000, 3)
    system.pipe({f"{STEP}/.metadata": content, f"{STEP}/__0_0.distcp": bytes(5_000_000)})
    store = open_store(f"s3://{STEP}")
    server.forget()
    assert find_readers(store).readers["2.14"] is False
    asked = reads(server)
    assert sum(each.sent for each in asked) < 100_000 < len(content) / 20
    assert {each.method for each in server.requests()} == {"GET"}, "sizes come with the listing"


def test_inspect_reads_ranges_of_the_metadata_and_nine_bytes_of_data(
    system: Any, server: Server
) -> None:
    content = metadata(33_000, 3)
    assert len(content) > 2 * (8 << 20), "so that it takes more than one range"
    system.pipe({f"{STEP}/.metadata": content, f"{STEP}/__0_0.distcp": bytes(5_000_000)})
    store = open_store(f"s3://{STEP}")
    server.forget()
    assert len(inspect_store(store).metadata[".metadata"].tensors) == 33_000
    asked = reads(server)
    of_metadata = [each.sent for each in asked if each.path.endswith("/.metadata")]
    of_data = [each.sent for each in asked if each.path.endswith(".distcp")]
    assert of_data == [9]
    assert len(content) <= sum(of_metadata) < len(content) + 100_000
    assert max(of_metadata) < len(content)


def test_verify_finds_a_flipped_bit(system: Any) -> None:
    files = upload(system, "dtensor2")
    store = open_store(f"s3://{STEP}")
    assert verify(store).checked > 0
    assert [each.code for each in verify(store).findings if each.code == "slice"] == []
    data = bytearray(files[f"{STEP}/__1_0.distcp"])
    data[data.index(b"data/0") + 100] ^= 1
    system.pipe_file(f"{STEP}/__1_0.distcp", bytes(data))
    found = [each for each in verify(store).findings if each.code == "slice"]
    assert [each.file for each in found] == ["__1_0.distcp"]


def test_downgrade_is_conditional_and_undo_gives_every_byte_back(
    system: Any, server: Server
) -> None:
    before = upload(system, "plain")
    store = open_store(f"s3://{STEP}")
    tag = json.dumps(system.info(f"{STEP}/.metadata")["ETag"].strip('"'))
    server.forget()
    (made,) = convert(store, "2.14")
    put_in_place(store, made)
    (put,) = (
        each
        for each in server.requests()
        if each.method == "PUT" and each.path.endswith("/.metadata")
    )
    assert (put.condition, put.status) == (tag, 200)
    during = stored(system)
    assert during.keys() - before.keys() == {f"{STEP}/.metadata{KEPT}", f"{STEP}/.metadata{RECORD}"}
    assert during[f"{STEP}/.metadata"] == made.after.data
    assert find_readers(store).readers["2.14"] is True
    undo(store)
    assert stored(system) == before


def test_downgrade_knows_the_sizes_of_data_files_from_a_listing(
    system: Any, server: Server
) -> None:
    upload(system, "dtensor2")
    store = open_store(f"s3://{STEP}")
    server.forget()
    assert convert(store, "2.14")
    requests = server.requests()
    # Of data: the nine bytes that tell the safetensors format, and the only object.
    data = [(each.method, each.sent) for each in requests if each.path.endswith(".distcp")]
    assert data == [("GET", 9), ("GET", 1261)]
    assert sum("list-type" in each.query for each in requests) == 2
    system.rm(f"{STEP}/__1_0.distcp")
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: missing"):
        convert(store, "2.14")


def test_what_somebody_else_wrote_meanwhile_stays(system: Any, server: Server) -> None:
    upload(system, "plain")
    store = open_store(f"s3://{STEP}")
    (made,) = convert(store, "2.14")
    system.pipe_file(f"{STEP}/.metadata", THEIRS)
    server.forget()
    with pytest.raises(CheckpointError, match="written by somebody else"):
        put_in_place(store, made)
    refused = [each for each in server.requests() if each.status == 412]
    assert [(each.method, each.path) for each in refused] == [("PUT", f"/{STEP}/.metadata")]
    assert system.cat_file(f"{STEP}/.metadata") == THEIRS
    with pytest.raises(CheckpointError, match="written again since"):
        undo(store)
    assert system.cat_file(f"{STEP}/.metadata") == THEIRS
    upload(system, "noncontig")
    (made,) = convert(store, "2.14")
    put_in_place(store, made)
    undo(store)
    assert system.cat_file(f"{STEP}/.metadata") == THEIRS


class Interrupted(RemoteStore):
    """Somebody else writes just before one of the calls, which are about a request each."""

    countdown = 0
    intrude: Callable[[], None]

    def _tick(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            self.intrude()

    def files(self) -> Any:
        self._tick()
        return super().files()

    def size(self, name: str) -> int:
        self._tick()
        return super().size(name)

    def read(self, name: str, start: int, end: int) -> bytes:
        self._tick()
        return super().read(name, start, end)

    def stamp(self, name: str) -> str:
        self._tick()
        return super().stamp(name)

    def put(self, name: str, data: bytes, **options: Any) -> None:
        self._tick()
        super().put(name, data, **options)

    def remove(self, name: str) -> None:
        self._tick()
        super().remove(name)


def interrupted(system: Any, moment: int) -> Interrupted:
    store = Interrupted(f"s3://{STEP}", fsspec.filesystem("s3"), STEP)
    store.countdown = moment
    store.intrude = lambda: system.pipe_file(f"{STEP}/.metadata", THEIRS)
    return store


def downgrade(store: RemoteStore) -> None:
    for made in convert(store, "2.14"):
        put_in_place(store, made)


def test_whenever_another_writer_comes_its_metadata_is_not_lost(system: Any) -> None:
    converted = rewrite(THEIRS, "2.14").data
    refused = 0
    for moment in range(1, 100):
        upload(system, "plain")
        store = interrupted(system, moment)
        try:
            downgrade(store)
        except CheckpointError:
            refused += 1
        now = stored(system)
        system.rm(STEP, recursive=True)
        if store.countdown > 0:
            break  # it was over before
        if now[f"{STEP}/.metadata"] == converted:
            assert now[f"{STEP}/.metadata{KEPT}"] == THEIRS
        else:
            assert now[f"{STEP}/.metadata"] == THEIRS
    assert moment > 8
    assert refused >= 4, "between the reading and the last request"


def test_whenever_another_writer_comes_undo_does_not_lose_it_either(system: Any) -> None:
    for moment in range(1, 100):
        upload(system, "plain")
        store = interrupted(system, 0)
        downgrade(store)
        store.countdown = moment
        with suppress(CheckpointError):  # written again since, or by somebody else meanwhile
            undo(store)
        now = system.cat_file(f"{STEP}/.metadata")
        system.rm(STEP, recursive=True)
        if store.countdown > 0:
            break
        assert now == THEIRS
    assert moment > 6


def test_status_asks_once_for_each_step_it_looks_at(system: Any, server: Server) -> None:
    new, old = metadata(1, 1), metadata(1, 1, fields=5)
    run = {f"bucket/run/step-{n}/.metadata": old if n == 20 else new for n in range(150)}
    run |= {f"bucket/run/step-20/{name}": data for name, data in data_files(old).items()}
    del run["bucket/run/step-149/.metadata"]
    system.pipe({**run, "bucket/run/step-149/__0_0.distcp": b"a save that did not end"})
    server.forget()
    found = find_status(open_store("s3://bucket/run"), "2.14")
    assert (found.behind, found.looked_at, found.steps) == (128, 130, 150)
    assert found.incomplete == ("step-149",)
    asked = server.requests()
    assert 130 <= len(reads(server)) <= 160, "batches double, so the last may reach too far"
    assert len(asked) - len(reads(server)) < 12


def test_the_command_itself(system: Any, server: Server) -> None:
    upload(system, "plain")
    for arguments, code in (
        (["downgrade", f"s3://{STEP}", "--for", "2.14"], ExitCode.PASS),
        (["status", "s3://bucket/run", "--for", "2.14"], ExitCode.PASS),
    ):
        command = [str(Path(sys.executable).with_name("keepstep")), "checkpoint", *arguments]
        finished = subprocess.run(command, capture_output=True, text=True)
        assert finished.returncode == code, finished.stderr
