"""The commands: what they say, in words and as JSON, with which exit code. uv is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.create import create
from keepstep.stack.named import AT_CREATION, Stack
from tests.stack.conftest import FakeUv, Run

SECRET = "hunter2-never-shown"

Asked = Callable[..., Any]


@pytest.fixture
def stack(uv: FakeUv) -> Stack:
    return create("new", torch="2.15.0")


def install_into(stack: Stack, name: str, version: str) -> None:
    """Do what somebody does who installs a package into a stack."""
    info = Path(stack.python).parent.parent / "site" / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_create_says_what_it_cost(uv: FakeUv, run: Run, asked: Asked) -> None:
    code, out, progress = run("create", "new", "--torch", "2.15.0")
    assert code == 0
    assert "stack new: PyTorch 2.15.0, ready after" in out
    assert "are its own (the rest is shared with the installer's cache)" in out
    assert "making the stack new" in progress
    again = asked("create", "new", "--torch", "2.15.0")
    assert (again["name"], again["origin"], again["seconds"] < 1) == ("new", "created", True)


def test_list_says_who_is_as_made(stack: Stack, run: Run, asked: Asked) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert out.startswith("new  PyTorch 2.15.0, made, ")
    assert "as it was made" in out
    (found,) = asked("list")["stacks"]
    assert (found["name"], found["drift"], found["error"]) == ("new", [], None)


def test_without_stacks_list_says_how_to_make_one(run: Run, asked: Asked) -> None:
    code, out, _ = run("list")
    assert (code, "keepstep stack create 2.15.0 --torch 2.15.0" in out) == (0, True)
    assert asked("list") == {"stacks": [], "unfinished": []}


def test_a_package_installed_later_is_drift(stack: Stack, run: Run, asked: Asked) -> None:
    install_into(stack, "einops", "0.8")
    code, out, _ = run("list")
    assert (code, "changed since it was made: einops" in out) == (1, True)
    code, out, _ = run("show", "new")
    assert (code, "package.einops  (none) -> 0.8" in out) == (1, True)
    (found,) = asked("show", "new")["drift"]
    assert (found["field"], found["first"], found["second"]) == ("package.einops", "", "0.8")


def test_an_interpreter_that_does_not_start_is_said(stack: Stack, run: Run) -> None:
    Path(stack.python).write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    code, out, _ = run("list")
    assert (code, "it does not start: " in out, "and said: broken" in out) == (1, True, True)
    code, _, said = run("show", "new")
    assert (code, "ended with status 3" in said) == (4, True)


def test_show_reads_the_running_interpreter(
    stack: Stack, run: Run, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    code, out, _ = run("show", "new")
    assert code == 0
    assert "stack new: PyTorch 2.15.0+fake (000000000000), CPU only" in out
    assert "NCCL: none: no libnccl is loaded" in out
    assert "variable NCCL_DEBUG=INFO: ignored" in out
    found = asked("show", "new")
    assert found["fingerprint"]["torch"]["version"] == "2.15.0+fake"
    assert found["material"]["torch.version"] == "2.15.0+fake"


def test_what_was_is_not_known_without_the_fingerprint_of_then(stack: Stack, run: Run) -> None:
    (stack.folder / AT_CREATION).unlink()
    code, out, _ = run("show", "new")
    assert (code, "what it was when it was made is not known" in out) == (3, True)
    assert "not looked at" in run("list")[1]


def test_diff_names_what_is_material_first(stack: Stack, run: Run, asked: Asked) -> None:
    create("old", torch="2.14.1")
    code, out, _ = run("diff", "old", "new")
    assert code == 1
    assert out.splitlines()[0] == "old -> new: 4 material differences"
    assert "  torch.version    2.14.1+fake -> 2.15.0+fake" in out
    assert "NCCL: none -> none" in out
    fields = [each["field"] for each in asked("diff", "old", "new")["differences"]]
    assert fields == ["torch.version", "checkpoint.form", "package.numpy", "package.torch"]
    code, out, _ = run("diff", "new", "new")
    assert (code, "new -> new: no material difference" in out) == (0, True)


def test_diff_says_outright_that_both_ship_one_nccl(
    stack: Stack, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = {"name": "libnccl.so.2", "path": "a", "build_id": "aa"}
    both = {"nccl": {"version": "2.30.7", "path": "a"}, "libraries": [library]}
    monkeypatch.setattr("keepstep.cli.stack_diff.ask_fingerprint", lambda _: both)
    assert "both ship NCCL 2.30.7, the same build" in run("diff", "new", "new")[1]


def test_a_library_that_is_loaded_twice_fails(
    stack: Stack, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ask_fingerprint(stack)
    paths = ["cu12/libnccl.so.2", "cu13/libnccl.so.2"]
    found["duplicates"] = [{"name": "libnccl", "paths": paths, "different": True}]
    monkeypatch.setattr("keepstep.cli.stack_show.ask_fingerprint", lambda _: found)
    code, out, _ = run("show", "new")
    assert code == 1
    assert "libnccl is loaded twice (two different builds): cu12/libnccl.so.2, cu13" in out


@pytest.mark.parametrize("command", ["show", "remove"])
def test_an_unknown_stack_is_said_with_those_there_are(
    stack: Stack, run: Run, command: str
) -> None:
    code, out, said = run(command, "nwe")
    assert (code, out) == (2, "")
    assert "there is no stack nwe (there is: new); make it: keepstep stack create nwe" in said


def test_a_version_without_its_last_number_is_asked_about(run: Run) -> None:
    create("2.14.1", torch="2.14.1")
    code, _, said = run("show", "2.14")
    assert code == 2
    assert "there is no stack 2.14 (there is: 2.14.1); did you mean 2.14.1?" in said


def test_no_output_holds_what_is_not_on_the_list(
    stack: Stack, run: Run, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "NCCL_PASSWORD", "TORCH_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    create("other", torch="2.14.1")
    said = ""
    for command in (["list"], ["show", "new"], ["diff", "other", "new"], ["show", "nwe"]):
        for more in ([], ["--json"]):
            said += "".join(map(str, run(*command, *more)))
    assert "PyTorch 2.15.0" in said
    assert SECRET not in said
    for path in cache.rglob("*.json"):
        assert SECRET not in path.read_text()
        json.loads(path.read_text())
