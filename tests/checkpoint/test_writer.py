"""What PyTorch 2.15 writes with keepstep's writer: the form of 2.14, whichever way it saves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keepstep.checkpoint.compare import compare
from keepstep.checkpoint.inspection import inspect_store
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import Saved

OLD = ["old", "own", "own-again", "remote", "two-files", "everywhere", "rank-local"]
ASYNC = ["async-thread", "async-process"]


@pytest.mark.parametrize("name", [*OLD, *ASYNC])
def test_an_older_version_can_read_it(name: str, saved: Saved) -> None:
    store = LocalStore(saved.folder / name)
    readers = find_readers(store).readers
    assert readers["2.14"] is True
    assert readers["2.15"] is True
    assert all(each.fields == (5,) for each in inspect_store(store).metadata.values())


@pytest.mark.parametrize("name", ["new", "new-after"])
def test_other_saves_are_as_ever(name: str, saved: Saved) -> None:
    assert find_readers(LocalStore(saved.folder / name)).readers["2.14"] is False


@pytest.mark.parametrize("name", [*OLD, *ASYNC])
def test_what_is_saved_is_the_same(name: str, saved: Saved) -> None:
    new = LocalStore(saved.folder / "new")
    equal, differences = compare(new, LocalStore(saved.folder / name))
    assert (equal, differences) == (10, [])


def test_only_the_strides_are_missing(saved: Saved) -> None:
    new, old = (inspect_store(LocalStore(saved.folder / name)) for name in ("new", "old"))
    (ours,), (theirs,) = old.metadata.values(), new.metadata.values()
    assert [t.strides for t in ours.tensors] == [None] * 8
    assert [t.shape for t in ours.tensors] == [t.shape for t in theirs.tensors]
    assert (ours.objects, ours.files, ours.version) == (theirs.objects, theirs.files, "1.0.0")


def test_a_writer_of_ones_own_keeps_its_finish(saved: Saved) -> None:
    assert (saved.folder / "own" / "finished").exists()
    assert saved.facts["same_object"] is True
    assert saved.facts["other_thread_meanwhile"] == 6
    assert saved.facts["refuses_options"] == (
        "the writer exists already: it cannot take thread_count"
    )


def test_what_the_trainer_gets_back_is_whole(saved: Saved) -> None:
    assert saved.facts["strides_in_memory"] == [1, 3]
    assert saved.facts["storage_meta"] is True
    assert saved.facts["loaded"] is True


def test_the_whole_process_until_it_is_switched_off(saved: Saved) -> None:
    facts = saved.facts
    assert (facts["everywhere"], facts["torch_protocol"], facts["nowhere"]) == (5, 5, 6)
    assert facts["sharded_shorter"] is True


def test_the_package_is_imported_without_torch() -> None:
    program = (
        "import sys; import keepstep.checkpoint as c; from keepstep.checkpoint import downgrade\n"
        "assert sorted(c.__all__) == ['is_protected', 'write_old_format', 'writer']\n"
        "try: c.nothing\n"
        "except AttributeError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout.splitlines() == [
        "module 'keepstep.checkpoint' has no attribute 'nothing'",
        "False",
    ]
