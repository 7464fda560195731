"""Making stacks: whole or not at all, one at a time, never twice for nothing. uv is a fake."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest

from keepstep.stack.create import create, remove
from keepstep.stack.errors import (
    BadRequestError,
    NoSpaceError,
    OtherStackError,
    StackError,
    UnknownStackError,
)
from keepstep.stack.named import LOCK, Stack, all_stacks, find_stack, unfinished_stacks
from keepstep.stack.uv import LOCKS, find_uv, installer_variables
from keepstep.stack.wanted import shipped_versions
from tests.stack.conftest import FakeUv, Run, free


def test_a_stack_is_made_from_the_lock_that_ships_and_only_once(uv: FakeUv, cache: Path) -> None:
    made = create("old", torch="2.14.1")
    assert made.python == str(cache / "stacks" / "old" / "env" / "bin" / "python")
    assert (made.origin, made.torch, made.command("-V")) == (
        "created",
        "2.14.1",
        [made.python, "-V"],
    )
    assert (made.folder / LOCK).read_text() == (LOCKS / "torch-2.14.1.txt").read_text()
    (install,) = uv.calls("pip", "install")
    assert "--require-hashes" in install
    assert not uv.calls("pip", "compile")
    assert find_stack("old") == made == create("old", torch="2.14.1")
    assert len(uv.calls("pip", "install")) == 1
    assert made.bytes >= made.own_bytes > 0


def test_another_version_is_resolved_and_its_lock_is_kept(uv: FakeUv) -> None:
    made = create("mid", torch="2.13.0")
    lock = (made.folder / LOCK).read_text()
    assert lock.startswith("torch==2.13.0 --hash=sha256:")
    assert "--no-emit-index-url" in uv.calls("pip", "compile")[0]
    assert create("mid", torch="2.13.0") == made
    assert len(uv.calls("pip", "compile")) == 1


def test_requirements_of_the_user_are_installed_and_a_change_makes_it_again(
    uv: FakeUv, tmp_path: Path
) -> None:
    file = tmp_path / "job.txt"
    file.write_text("torch==2.15.0\nnumpy\n")
    first = create("mine", requirements=file)
    assert (first.torch, "--require-hashes" in uv.calls("pip", "install")[0]) == ("2.15.0", False)
    file.write_text("torch==2.15.0\nnumpy\nsafetensors\n")
    second = create("mine", requirements=file)
    assert second.lock_sha256 != first.lock_sha256
    assert len(uv.calls("pip", "install")) == 2


def test_an_installer_that_fails_leaves_no_stack_and_the_next_time_mends_it(
    uv: FakeUv, run: Run
) -> None:
    uv.will("fails")
    code, _, said = run("create", "new", "--torch", "2.15.0")
    assert code == 4
    assert "the index does not answer" in said
    assert "PIP_INDEX_URL" in said
    assert (all_stacks(), unfinished_stacks()) == ((), ("new",))
    with pytest.raises(UnknownStackError, match=r"never finished; make it: keepstep stack create"):
        find_stack("new")
    assert "never finished" in run("list")[1]
    uv.works_again()
    assert create("new", torch="2.15.0") == find_stack("new")
    assert unfinished_stacks() == ()


def _create_in_a_process(name: str) -> None:
    create(name, torch="2.15.0")


def test_a_creation_that_is_killed_is_mended_by_the_next(uv: FakeUv) -> None:
    uv.will("dies")
    process = multiprocessing.get_context("fork").Process(
        target=_create_in_a_process, args=("new",)
    )
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert all_stacks() == ()
    assert create("new", torch="2.15.0") == find_stack("new")


def test_two_at_once_make_one(uv: FakeUv) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_create_in_a_process, args=("new",)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(uv.calls("pip", "install")) == 1
    assert find_stack("new").torch == "2.15.0"


@pytest.mark.parametrize(
    ("unpacked", "room", "enough"),
    [(False, 6 * 10**9, False), (True, 6 * 10**9, True), (True, 10**8, False)],
)
def test_a_full_disk_is_said_before_anything_is_done(
    uv: FakeUv, monkeypatch: pytest.MonkeyPatch, *, unpacked: bool, room: int, enough: bool
) -> None:
    if unpacked:
        (uv.folder / "archive-v0" / "x" / "torch-2.15.0.dist-info").mkdir(parents=True)
    free(monkeypatch, room)
    if enough:
        assert create("new", torch="2.15.0").torch == "2.15.0"
        return
    with pytest.raises(NoSpaceError, match=r"GB are free in .* wants . GB.*XDG_CACHE_HOME"):
        create("new", torch="2.15.0")
    assert unfinished_stacks() == ()
    assert not uv.calls("venv")
    assert not uv.calls("pip")


@pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "a" * 65, "x y", "-x"])
def test_a_name_that_cannot_be_a_folder_is_refused(name: str, cache: Path) -> None:
    with pytest.raises(BadRequestError, match="wanted up to 64 letters"):
        create(name, torch="2.15.0")
    with pytest.raises(BadRequestError, match="wanted up to 64 letters"):
        find_stack(name)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "wanted a PyTorch: keepstep stack create x --torch 2.15.0"),
        (["x", "--torch", "2.15"], "wanted a whole PyTorch version, such as 2.14.1"),
        (["x", "--torch", "newest"], "wanted a whole PyTorch version"),
        (["x", "--python", "a", "--adopt", "b"], "wanted one of"),
        (["x", "--python", "/nowhere/python"], "there is no such interpreter"),
        (["x", "--adopt", "/nowhere"], "there is no bin/python in it"),
        (["x", "--requirements", "/nowhere"], "no such file of requirements"),
        (["x", "--torch", "2.15.0", "--prefix", "docker run i"], "--prefix wants --python"),
        (["x", "--torch", "2.15.0", "--variable", "HF_TOKEN=1"], "HF_TOKEN: not a variable"),
        (["x", "--torch", "2.15.0", "--variable", "NCCL_ALGO"], "wanted NAME=VALUE"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(
    run: Run, cache: Path, arguments: list[str], said: str
) -> None:
    code, out, error = run("create", *arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert not (cache / "stacks").exists()


def test_another_stack_of_the_name_is_not_replaced(uv: FakeUv) -> None:
    made = create("new", torch="2.15.0")
    with pytest.raises(OtherStackError, match="keepstep stack remove new"):
        create("new", torch="2.14.1")
    with pytest.raises(OtherStackError):
        create("new", torch="2.15.0", variables={"NCCL_ALGO": "Ring"})
    assert find_stack("new") == made


def test_a_stack_whose_interpreter_is_gone_is_made_again(uv: FakeUv) -> None:
    made = create("new", torch="2.15.0")
    Path(made.python).unlink()
    assert create("new", torch="2.15.0").python == made.python
    assert os.path.exists(made.python)


def test_an_environment_that_is_there_is_taken_as_it_is_and_stays(
    uv: FakeUv, tmp_path: Path
) -> None:
    other = Path(create("base", torch="2.14.1").python).parent.parent
    before = sorted(other.rglob("*"))
    adopted = create("theirs", adopt=other)
    assert (adopted.origin, adopted.torch) == ("adopted", "2.14.1")
    assert (adopted.python, adopted.bytes) == (str(other / "bin" / "python"), 0)
    named = create("same", torch="2.14.1", python=adopted.python)
    assert (named.origin, named.python) == ("python", adopted.python)
    remove("theirs")
    remove("same")
    assert sorted(other.rglob("*")) == before
    assert [stack.name for stack in all_stacks()] == ["base"]


def test_another_torch_than_the_one_asked_for_is_refused(uv: FakeUv) -> None:
    python = create("base", torch="2.14.1").python
    with pytest.raises(StackError, match=r"it has PyTorch 2\.14\.1\+fake; wanted 2\.15\.0"):
        create("new", torch="2.15.0", python=python)
    assert [stack.name for stack in all_stacks()] == ["base"]
    assert unfinished_stacks() == ()


def test_an_interpreter_without_pytorch_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(
        StackError, match=r"it has no PyTorch that loads: .*No module named 'torch'"
    ):
        create("bare", python=str(bare))


def test_what_is_behind_a_prefix_gets_the_code_on_its_command_line(
    uv: FakeUv, tmp_path: Path
) -> None:
    inner = create("base", torch="2.14.1").python
    # Like a container: nothing of this process's environment is there.
    prefix = ("env", "-i", f"PATH={os.environ['PATH']}")
    made = create("boxed", python=inner, prefix=prefix)
    assert (made.torch, made.command("a.py")) == ("2.14.1", [*prefix, inner, "a.py"])
    assert made.launcher != made.python
    assert os.access(made.launcher, os.X_OK)
    assert made == create("boxed", python=inner, prefix=prefix)


def test_removing_what_is_not_there_says_what_is(uv: FakeUv, run: Run) -> None:
    create("new", torch="2.15.0")
    code, _, said = run("remove", "nwe")
    assert code == 2
    assert "there is no stack nwe (there is: new)" in said
    assert run("remove", "new")[0] == 0
    assert all_stacks() == ()


def test_a_damaged_record_is_no_stack(uv: FakeUv) -> None:
    made = create("new", torch="2.15.0")
    (made.folder / "stack.json").write_text('{"name": "new"')
    assert unfinished_stacks() == ("new",)
    assert create("new", torch="2.15.0") == find_stack("new")


def test_variables_belong_to_the_stack(uv: FakeUv) -> None:
    made = create("new", torch="2.15.0", variables={"TORCH_DIST_USE_NCCL2": "0"})
    assert made.variables == {"TORCH_DIST_USE_NCCL2": "0"}
    assert isinstance(find_stack("new"), Stack)


def test_the_installer_is_the_one_on_the_path(uv: FakeUv) -> None:
    assert find_uv() == uv.folder / "uv"


def test_a_mirror_given_to_pip_holds_for_uv_unless_uv_has_its_own() -> None:
    mirror = {"PIP_INDEX_URL": "https://mirror.example"}
    assert installer_variables(mirror)["UV_DEFAULT_INDEX"] == "https://mirror.example"
    own = {**mirror, "UV_DEFAULT_INDEX": "https://own.example"}
    assert installer_variables(own) == own


def test_both_locks_ship() -> None:
    assert shipped_versions() == ("2.14.1", "2.15.0")
