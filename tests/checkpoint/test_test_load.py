"""Test-loads: by the PyTorch of this environment, by one that is as strict as 2.14, by fakes."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import struct
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.contents import read_slices
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.record import read_records
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.testload import Keys, Loaded, NoInterpreterError, environment_of, load_with
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from tests.checkpoint.conftest import DATA, Checkpoint, Saved

Interpreter = Callable[..., str]

# What makes this environment refuse what 2.14 refuses, in the words of 2.14.
AS_STRICT_AS_2_14 = """
    import sys
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "torch.distributed.checkpoint.filesystem":
                from torch.distributed.checkpoint.metadata import TensorProperties
                own = TensorProperties.__setstate__
                def strict(self, state):
                    a, b, c, d, e = state
                    own(self, state)
                TensorProperties.__setstate__ = strict
    sys.meta_path.insert(0, Finder)
"""
TRAINER = """
    import torch
    from shapes import SHAPE
    print("a trainer prints")
    def state_dict():
        half = torch.empty(2, dtype=torch.float16, device="meta")
        model = {"w": torch.empty(SHAPE, device="meta"), "b": torch.empty(3), "h": half}
        return {"model": {**model, "new": torch.empty(1)}, "step": 0}
"""
LARGE = 40 << 20  # bytes of each of the six large tensors that saves.py writes
ENVIRONMENT = {"executable": "python", "python": "3.11.7", "torch": {"version": "2.14.1"}}
RESULT = {"tensors": 1, "objects": 0, "bytes": 4, "digests": {"w": "00"}}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def strict(tmp_path: Path) -> str:
    """An interpreter whose PyTorch refuses the form of 2.15."""
    folder = tmp_path / "strict"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(AS_STRICT_AS_2_14))
    return script(folder / "python", f'PYTHONPATH={folder} exec {sys.executable} "$@"')


@pytest.fixture
def fake(tmp_path: Path) -> Interpreter:
    """Make an interpreter that gives the answers it is told to."""

    def make(probe: str, environment: dict[str, Any] = ENVIRONMENT) -> str:
        says = f"echo '{json.dumps(environment)}'"
        return script(tmp_path / "python", f"if [ $# -eq 2 ]; then {says}; else {probe}; fi")

    return make


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def answer(**result: Any) -> str:
    text = json.dumps({"result": {**RESULT, **result}})
    return f"echo a package prints; echo {shlex.quote(text)}"


@pytest.fixture(scope="module")
def loaded(saved: Saved) -> Loaded:
    """The checkpoint called new, loaded by the PyTorch that wrote it."""
    return load_with(LocalStore(saved.folder / "new"), sys.executable)


def test_every_entry_is_digested_as_pytorch_loads_it(loaded: Loaded) -> None:
    record = loaded.record
    assert (record.verdict, record.level, record.error) == ("pass", "bytes", "")
    assert (loaded.tensors, loaded.objects) == (8, 2)
    assert record.torch.partition("+")[0] == version("torch")
    content = hashlib.sha256(struct.pack("<12f", *range(12))).hexdigest()
    assert record.digests["w"] == tensor_digest("torch.float32", [3, 4], content)
    nothing = hashlib.sha256().hexdigest()
    assert record.digests["empty"] == tensor_digest("torch.float32", [0, 4], nothing)
    halves = hashlib.sha256(b"\x80\x3f" * 4).hexdigest()
    assert record.digests["half"] == tensor_digest("torch.bfloat16", [4], halves)


def tensor_digest(dtype: str, shape: list[int], content: str) -> str:
    says = [dtype, shape, [[[0] * len(shape), shape, content]]]
    return hashlib.sha256(json.dumps(says).encode()).hexdigest()


def test_what_is_as_strict_as_2_14_refuses_the_new_form(saved: Saved, strict: str) -> None:
    record = load_with(LocalStore(saved.folder / "new"), strict).record
    assert (record.verdict, record.error) == (
        "fail",
        "ValueError: too many values to unpack (expected 5) (in the metadata)",
    )


def test_damage_is_named_with_its_entry_and_rank(saved: Saved, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "damaged")
    shutil.copytree(saved.folder / "rank-local", store.path)
    with store.opened("__0.metadata") as file:
        _, slices, _ = read_slices(file)
    last = max(slices, key=lambda each: (each.file, each.offset))
    with (store.path / last.file).open("r+b") as data:
        data.seek(last.offset)
        data.write(bytes(last.length))
    record = load_with(store, sys.executable).record
    assert record.verdict == "fail"
    assert record.error.endswith(f"(in {last.name})")


def test_memory_is_bounded_and_the_keys_are_compared(
    saved: Saved, tmp_path: Path, loaded: Loaded
) -> None:
    (tmp_path / "shapes.py").write_text("SHAPE = (2, 4)\n")
    trainer = tmp_path / "trainer.py"
    trainer.write_text(textwrap.dedent(TRAINER))
    seen: list[tuple[int, int]] = []
    found = load_with(
        LocalStore(saved.folder / "large"),
        sys.executable,
        trainer,
        lambda read, size: seen.append((read, size)),
    )
    # PyTorch's reader holds the last shard while it loads the next, and there is the copy.
    assert found.peak_bytes - loaded.peak_bytes < 3.5 * LARGE
    assert found.record.bytes > 6 * LARGE
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1] <= found.record.bytes
    assert found.keys is not None
    assert found.keys.missing == ("model.new",)
    assert found.keys.unexpected == (
        *("empty", "gone", "half", "scalar", "turned", "w"),
        *("w0", "w1", "w2", "w3", "w4", "w5", "words"),
    )
    assert found.keys.different == {
        "model.w": "shape: [2, 3] saved, [2, 4] wanted",
        "model.h": "dtype: torch.float32 saved, torch.float16 wanted",
    }
    assert (found.keys.compared, found.record.verdict, found.record.level) == (4, "fail", "keys")


@pytest.mark.parametrize(
    ("missing", "unexpected", "different", "verdict"),
    [
        ((), (), {}, "pass"),
        ((), ("a",), {}, "inconclusive"),
        ((), (), {"a": "dtype: ..."}, "inconclusive"),
        ((), (), {"a": "shape: ..."}, "fail"),
        (("a",), (), {}, "fail"),
    ],
)
def test_what_keys_prove(
    missing: tuple[str, ...], unexpected: tuple[str, ...], different: dict[str, str], verdict: str
) -> None:
    keys = Keys(compared=3, missing=missing, unexpected=unexpected, different=different)
    assert keys.verdict == verdict


def test_metadata_of_another_save_is_refused_before_anything_starts(
    checkpoint: Checkpoint,
) -> None:
    folder = checkpoint()
    (folder / "__0.metadata").touch()
    with pytest.raises(CheckpointError, match=r"__0\.metadata lies beside"):
        load_with(LocalStore(folder), "no-such-python")


def test_hostile_metadata_never_reaches_pytorch(checkpoint: Checkpoint) -> None:
    folder = checkpoint()
    (folder / ".metadata").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(CheckpointError, match="opcode 0x63"):
        load_with(LocalStore(folder), "no-such-python")


@pytest.mark.parametrize(
    ("probe", "environment", "says"),
    [
        ("kill -9 $$", ENVIRONMENT, "it ended with signal 9 before it had an answer"),
        ("echo no numpy >&2; exit 1", ENVIRONMENT, "an error before .* said: no numpy"),
        ("exit 0", {**ENVIRONMENT, "torch": None}, "it has no torch; wanted PyTorch 2.2 or newer"),
        ("exit 0", {**ENVIRONMENT, "torch": {"version": "2.1.2"}}, "it has PyTorch 2.1.2; wanted"),
        ("exit 0", {"no": "answer"}, "wanted Python 3.8 or newer"),
    ],
)
def test_an_interpreter_without_an_answer(
    probe: str, environment: dict[str, Any], says: str, fake: Interpreter
) -> None:
    python = fake(probe, environment)
    with pytest.raises(NoInterpreterError, match=says):
        load_with(LocalStore(DATA / "torch-2.15.0" / "plain"), python)


def test_the_environment_is_known_without_importing_torch() -> None:
    found = environment_of(sys.executable)
    assert found["torch"]["version"].partition("+")[0] == version("torch")
    assert len(found["torch"]["git"]) == 40
    assert found["packages"]["numpy"] == version("numpy")


def run(capture: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = execute(["checkpoint", *arguments])
    printed = capture.readouterr()
    return code, printed.out, printed.err


def test_the_command_records_and_status_answers(
    checkpoint: Checkpoint, fake: Interpreter, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(version="2.14.1")
    root, python = str(folder.parent), fake(answer(seconds=1.0, peak_bytes=600_000_000))
    load = ("test-load", str(folder), "--python", python)
    code, out, _ = run(capsys, *load, "--no-record")
    assert (code, out.splitlines()[0]) == (ExitCode.PASS, f"{folder}: PyTorch 2.14.1 loaded it")
    assert "600 MB of memory" in out
    assert read_records(LocalStore(folder)) == []
    status = ("status", root, "--for", "2.14")
    assert (
        f"never test-loaded with PyTorch 2.14: keepstep checkpoint test-load {folder}"
        in (run(capsys, *status)[1])
    )
    code, out, err = run(capsys, *load, "--json")
    assert (code, err) == (ExitCode.PASS, "")
    assert json.loads(out)["digests"] == {"w": "00"}
    out = run(capsys, *status)[1]
    assert "last test-loaded with PyTorch 2.14.1" in out
    assert "pass" in out
    assert json.loads(run(capsys, *status, "--json")[1])["test_load"]["stale"] == []
    (folder / "__0_0.distcp").touch()
    out = run(capsys, *status)[1]
    assert "  stale: data files have changed: __0_0.distcp" in out
    assert "never" in run(capsys, "status", root, "--for", "2.4")[1]


def test_a_refusal_says_what_to_do(
    checkpoint: Checkpoint, fake: Interpreter, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint()
    five = {"type": "ValueError", "text": "too many values to unpack (expected 5)"}
    python = fake(answer(error={**five, "at": "metadata", "entry": ""}))
    code, out, _ = run(capsys, "test-load", str(folder), "--python", python)
    lines = out.splitlines()
    assert (code, lines[0]) == (ExitCode.FAIL, f"{folder}: PyTorch 2.14.1 does not load it")
    assert lines[1] == "  ValueError: too many values to unpack (expected 5) (in the metadata)"
    assert lines[-1] == f"next: keepstep checkpoint readers {folder} --for 2.14"
    missing = {"type": "ModuleNotFoundError", "text": "No module named 'mine'"}
    python = fake(answer(error={**missing, "at": "data", "entry": "sampler"}))
    out = run(capsys, "test-load", str(folder), "--python", python)[1]
    assert "No module named 'mine' (in sampler)" in out
    assert "PYTHONPATH" in out.splitlines()[-1]


def test_the_interpreter_is_recorded_as_an_absolute_path(
    checkpoint: Checkpoint, fake: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, python = LocalStore(checkpoint()), Path(fake(answer()))
    (python.parent / "link").symlink_to(python)
    monkeypatch.chdir(python.parent)
    assert load_with(store, "./link").record.python == str(python.parent / "link")
    monkeypatch.setenv("PATH", str(python.parent), prepend=":")
    assert load_with(store, "link").record.python == str(python.parent / "link")


def test_a_stack_is_loaded_with_by_its_name(
    checkpoint: Checkpoint,
    fake: Interpreter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "keepstep" / "stacks" / "old"
    folder.mkdir(parents=True)
    python = fake(answer())
    (folder / "stack.json").write_text(json.dumps({"name": "old", "python": python, "prefix": []}))
    path = str(checkpoint())
    code, out, _ = run(capsys, "test-load", path, "--stack", "old")
    assert (code, f"in: {python}," in out) == (ExitCode.PASS, True)
    assert read_records(LocalStore(Path(path)))[0].python == python
    code, _, said = run(capsys, "test-load", path, "--stack", "odl")
    assert (code, "there is no stack odl (there is: old)" in said) == (ExitCode.USAGE, True)
    code, _, said = run(capsys, "test-load", path, "--stack", "old", "--python", python)
    assert (code, "wanted either --python EXE or --stack NAME" in said) == (ExitCode.USAGE, True)


def test_exit_codes_of_the_command(
    checkpoint: Checkpoint, fake: Interpreter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint())
    assert run(capsys, "test-load", folder)[0] == ExitCode.USAGE
    assert run(capsys, "test-load", folder, "--python", "no-python")[0] == ExitCode.INFRASTRUCTURE
    trainer = tmp_path / "trainer.py"
    trainer.touch()
    keys = ("test-load", folder, "--keys-from", str(trainer), "--python")
    none = answer(keys={"usage": "it defines no function state_dict()"})
    assert run(capsys, *keys, fake(none))[0] == ExitCode.USAGE
    assert run(capsys, *keys, fake(answer(keys={"failed": "OSError: x"})))[0] == ExitCode.FAIL
    rest = {"compared": 1, "missing": [], "unexpected": ["a"], "different": {}}
    code, out, _ = run(capsys, *keys, fake(answer(keys=rest)))
    assert code == ExitCode.INCONCLUSIVE
    assert "  a: in the checkpoint only, so a load leaves it out" in out


def test_a_checkpoint_that_changes_meanwhile_proves_nothing(
    checkpoint: Checkpoint, fake: Interpreter
) -> None:
    folder = checkpoint()
    python = fake(f"touch {folder}/__0_0.distcp; {answer()}")
    record = load_with(LocalStore(folder), python).record
    assert (record.verdict, record.error) == (
        "inconclusive",
        "it was written during the test-load",
    )
