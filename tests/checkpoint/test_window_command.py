"""`keepstep checkpoint protect, release, finalize, prune`: what they print and how they exit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from benchmarks.checkpoint.s3_server import s3_server
from keepstep.checkpoint import is_protected, testload
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.testload import environment_of as real_environment_of
from keepstep.cli import checkpoint_window
from keepstep.cli.checkpoint_answer import size_text
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.stack.named import Stack
from tests.checkpoint.conftest import DATA
from tests.checkpoint.runs import TOMORROW, Run, content, run

__all__ = ["run"]

Capture = pytest.CaptureFixture[str]
UNTIL = ["--owner", "maria", "--until", str(TOMORROW)]
OPEN = ["--for", "2.14", *UNTIL]


def call(capture: Capture, command: str, *arguments: str) -> tuple[int, str, str]:
    code = execute(["checkpoint", command, *arguments])
    printed = capture.readouterr()
    return code, printed.out, printed.err


def call_json(capture: Capture, command: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = call(capture, command, *arguments, "--json")
    assert err == ""
    assert out.count("\n") == 1
    return code, json.loads(out)


def bytes_of(run: Run, *steps: int) -> int:
    return sum(len(data) for s in steps for data in content(run.path / f"step-{s}").values())


def test_a_window_from_its_beginning_to_its_end(run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    run.test_load(200)
    root = str(run.path)
    size, both = size_text(bytes_of(run, 200)), size_text(bytes_of(run, 100, 200))
    code, out, _ = call(capsys, "protect", root, *OPEN, "--accept", "loss equal")
    assert code == ExitCode.PASS
    first, *rest = out.splitlines()
    assert first == (
        f"{root}: rollback window for PyTorch 2.14: owner maria, until {TOMORROW} (1 day left)"
    )
    assert rest[0].startswith(
        f"  step-200 ({size}): test-loaded with PyTorch 2.14.1 at 2026-11-29T20:00:00+00:00; copied"
    )
    assert rest[1] == "    the newest that PyTorch 2.14 reads and that was test-loaded"
    assert rest[3] == "    before it"
    assert "  accept 1: loss equal" in rest
    assert f"  costs 0 B now, {both} once the trainer has removed its own" in rest

    code, out, _ = call(capsys, "status", root, "--for", "2.14")
    assert (code, f"  {first.partition(': ')[2]}" in out.splitlines()) == (ExitCode.PASS, True)
    assert f"    protected: step-200 ({size}): test-loaded with" in out

    run.save(300, 400, version="2.15.0")
    new = size_text(bytes_of(run, 300))
    code, out, _ = call(capsys, "prune", root, "--keep", "1", "--dry-run")
    assert (code, out.splitlines()[:2]) == (
        ExitCode.PASS,
        [f"{root}: would remove 1 checkpoint, {new}", f"  step-300 ({new})"],
    )
    assert call(capsys, "prune", root, "--keep", "1")[0] == ExitCode.PASS
    assert run.steps() == [100, 200, 400]

    code, _, err = call(capsys, "finalize", root)
    assert (code, "1: loss equal" in err) == (ExitCode.FAIL, True)
    assert f"keepstep checkpoint finalize {root} --met 1=EVIDENCE" in err
    code, out, _ = call(capsys, "finalize", root, "--met", "1=run 77")
    assert (code, "  1: loss equal: met: run 77" in out) == (ExitCode.PASS, True)
    assert f"next: keepstep checkpoint prune {root} --copies" in out
    code, out, _ = call(capsys, "prune", root, "--keep", "1")
    assert code == ExitCode.PASS
    assert "removed 2 checkpoints and 2 protected copies" in out
    assert (run.steps(), run.copies.exists()) == ([400], False)


def test_the_answers_as_json(run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    run.test_load(200)
    root = str(run.path)
    code, found = call_json(capsys, "protect", root, *OPEN)
    assert (code, found["ledger"]) == (ExitCode.PASS, str(run.ledger))
    assert [mark["name"] for mark in found["window"]["marks"]] == ["step-200", "step-100"]
    assert (found["window"]["days_left"], found["bytes"]) == (1, bytes_of(run, 100, 200))
    shutil.rmtree(run.path / "step-200")
    code, found = call_json(capsys, "status", root, "--for", "2.14")
    assert (code, found["newer_copy"]) == (ExitCode.PASS, str(run.copies / "step-200"))
    assert found["protected"] == [
        {"mark": "step-200", "in_run": None, "copy": True},
        {"mark": "step-100", "in_run": True, "copy": True},
    ]
    run.save(300, version="2.15.0")
    code, found = call_json(capsys, "prune", root, "--keep", "1")
    assert (code, found["remove"]) == (ExitCode.PASS, [])
    assert "protected" in found["stay"]["step-100"]
    code, found = call_json(capsys, "release", root, "--because", "given up")
    assert (code, found["released"]["for"]) == (ExitCode.PASS, "2.14")
    code, found = call_json(capsys, "status", root, "--for", "2.14")
    assert found["window"] is None


def test_a_copy_is_the_way_back_when_the_run_has_none(run: Run, capsys: Capture) -> None:
    run.save(100)
    run.test_load(100)
    call(capsys, "protect", str(run.path), *OPEN)
    shutil.rmtree(run.path / "step-100")
    run.save(200, version="2.15.0")
    code, out, _ = call(capsys, "status", str(run.path), "--for", "2.14")
    assert code == ExitCode.PASS
    assert out.splitlines()[:3] == [
        f"{run.path}: PyTorch 2.14 can go back to step-100, 100 steps behind",
        f"  of which there is the copy {run.copies / 'step-100'}; "
        "the run itself has none that it can read",
        "  the newest is step-200",
    ]
    shutil.rmtree(run.path / "step-200")
    code, _, err = call(capsys, "status", str(run.path), "--for", "2.14")
    assert code == ExitCode.FAIL
    assert f"There is a copy that PyTorch 2.14 can read: {run.copies / 'step-100'}" in err


def test_a_copy_newer_than_the_run_is_the_answer_with_its_test_load(
    run: Run, capsys: Capture
) -> None:
    run.save(100, 200)
    run.test_load(200)
    root = str(run.path)
    call(capsys, "protect", root, *OPEN)
    shutil.rmtree(run.path / "step-200")
    run.save(700, version="2.15.0")
    code, out, _ = call(capsys, "status", root, "--for", "2.14")
    copy = run.copies / "step-200"
    assert (code, out.splitlines()[:2]) == (
        ExitCode.PASS,
        [
            f"{root}: PyTorch 2.14 can go back to step-200, 500 steps behind",
            f"  of which there is the copy {copy}; the run itself has only step-100",
        ],
    )
    assert "never test-loaded" not in out
    assert "pass (the ledger says so; it is unchanged since)" in out
    code, found = call_json(capsys, "status", root, "--for", "2.14")
    assert (found["behind"], found["newer_copy"]) == (500, str(copy))
    assert (found["test_load"]["verdict"], found["test_load"]["stale"]) == ("pass", [])
    metadata = copy / ".metadata"
    data = metadata.read_bytes()
    metadata.unlink()  # it may share its bytes with others
    metadata.write_bytes(data + b"x")
    assert "the ledger says so" not in call(capsys, "status", root, "--for", "2.14")[1]


def test_a_stack_of_the_version_is_named_for_the_test_load(
    run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = (
        Stack(name="new", python="a", torch="2.15.0"),
        Stack(name="o", python="b", torch="2.14.1"),
    )
    monkeypatch.setattr(checkpoint_window, "all_stacks", lambda: stacks)
    run.save(100)
    command = f"keepstep checkpoint test-load {run.path}/step-100 --stack o"
    assert command in call(capsys, "status", str(run.path), "--for", "2.14")[1]
    assert f"next: {command}" in call(capsys, "protect", str(run.path), *OPEN)[1]


def test_what_the_version_refused_to_load_is_no_way_back(run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    run.test_load(200, verdict="fail", error="RuntimeError: failed finding central directory")
    root = str(run.path)
    code, out, _ = call(capsys, "status", root, "--for", "2.14")
    assert (code, out.splitlines()[0]) == (
        ExitCode.PASS,
        f"{root}: PyTorch 2.14 can go back to step-100, 100 steps behind",
    )
    assert "  passed over: step-200: PyTorch 2.14.1 refused to load it at " in out
    assert f"next: keepstep checkpoint verify {root}/step-200" in out
    _, found = call_json(capsys, "protect", root, *OPEN)
    shutil.copytree(run.path / "step-200", run.copies / "step-200")  # by an earlier protect
    assert call_json(capsys, "status", root, "--for", "2.14")[1]["newer_copy"] is None
    assert [mark["name"] for mark in found["window"]["marks"]] == ["step-100"]


def test_what_is_no_run_gets_no_ledger(run: Run, capsys: Capture) -> None:
    run.save(100)
    step = run.path / "step-100"
    code, _, err = call(capsys, "prune", str(step), "--keep", "1")
    assert (code, "this is one checkpoint" in err) == (ExitCode.FAIL, True)
    assert [path.name for path in run.path.iterdir()] == ["step-100"]


def test_copies_that_are_no_longer_needed_go_without_the_run(run: Run, capsys: Capture) -> None:
    run.save(100)
    run.test_load(100)
    root = str(run.path)
    call(capsys, "protect", root, *OPEN)
    run.save(200, 300, 400)
    run.test_load(400)
    code, out, _ = call(capsys, "protect", root)
    assert (code, "copies of what was protected before take space: step-100" in out) == (0, True)
    assert f"next: keepstep checkpoint prune {root} --copies" in out
    code, found = call_json(capsys, "prune", root, "--copies")
    assert (code, [copy["name"] for copy in found["copies"]]) == (ExitCode.PASS, ["step-100"])
    assert sorted(path.name for path in run.copies.iterdir()) == [
        "step-200",
        "step-300",
        "step-400",
    ]
    assert run.steps() == [100, 200, 300, 400]
    assert "before" not in call(capsys, "protect", root)[1].partition("warning")[2]


@pytest.mark.parametrize(
    ("version", "code", "command"),
    [
        ("2.15.0", ExitCode.FAIL, "downgrade {}/step-100 --for 2.14"),
        ("2.14.1", ExitCode.INCONCLUSIVE, "test-load {}/step-100 --python EXE"),
    ],
)
def test_a_window_that_could_not_be_relied_on_says_what_mends_it(
    version: str,
    code: ExitCode,
    command: str,
    run: Run,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_window, "all_stacks", tuple)
    run.save(100, version=version)
    got, out, _ = call(capsys, "protect", str(run.path), *OPEN)
    assert got == code
    assert f"next: keepstep checkpoint {command.format(run.path)}" in out
    assert f"next: keepstep checkpoint protect {run.path}" in out
    assert call(capsys, "status", str(run.path), "--for", "2.14")[1].count("rollback window") == 1


def test_a_window_past_its_end_is_a_debt_that_is_shown(run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    run.test_load(200)
    root = str(run.path)
    call(capsys, "protect", root, *OPEN)
    run.ledger.write_text(run.ledger.read_text().replace(str(TOMORROW), "2020-01-01"))
    for command in (["status", root, "--for", "2.14"], ["prune", root, "--keep", "1"]):
        code, out, _ = call(capsys, *command)
        assert code == ExitCode.PASS
        assert "owner maria, until 2020-01-01: overdue by" in out
        assert f"maria owes a decision: keepstep checkpoint finalize {root}" in out
    assert run.steps() == [100, 200]
    _, found = call_json(capsys, "status", root, "--for", "2.14")
    assert found["window"]["days_left"] < -2000


def test_a_damaged_ledger_stops_prune_and_not_the_answer(run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    run.ledger.write_text("damaged\n")
    code, out, err = call(capsys, "prune", str(run.path), "--keep", "1")
    assert (code, out, "line 1 is damaged" in err) == (ExitCode.FAIL, "", True)
    code, out, _ = call(capsys, "status", str(run.path), "--for", "2.14")
    assert (code, "rollback window: not known" in out) == (ExitCode.PASS, True)
    assert run.steps() == [100, 200]


@pytest.mark.parametrize(
    "arguments",
    [
        ["protect"],
        ["protect", "--for", "2.14"],
        ["protect", "--for", "2.99", *UNTIL],
        ["protect", "--for", "2.14", "--owner", "maria", "--until", "tomorrow"],
        ["protect", *OPEN, "--marks-only", "--placement", "copy"],
        ["release"],
        ["release", "--because", " "],
        ["finalize", "--met", "1"],
        ["finalize", "--met", "1=a", "--waive", "1=b"],
        ["prune"],
        ["prune", "--keep", "0"],
        ["prune", "--keep", "1", "--copies"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str], run: Run, capsys: Capture) -> None:
    run.save(100, 200)
    command, *options = arguments
    code, out, err = call(capsys, command, str(run.path), *options)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err
    assert run.steps() == [100, 200]
    assert run.ledger.exists() is False or run.ledger.read_text() == ""


@pytest.mark.old_torch
@pytest.mark.timeout(1800)  # the environment may have to be made
def test_the_way_back_with_a_real_test_load(
    old: str, run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testload, "environment_of", real_environment_of)
    run.save(100)
    run.save(200, version="2.15.0")
    root = str(run.path)
    assert call(capsys, "protect", root, *OPEN)[0] == ExitCode.INCONCLUSIVE
    assert call(capsys, "test-load", f"{root}/step-200", "--python", old)[0] == ExitCode.FAIL
    assert call(capsys, "test-load", f"{root}/step-100", "--python", old)[0] == ExitCode.PASS
    code, found = call_json(capsys, "protect", root)
    assert (code, found["window"]["marks"][0]["tested"]["torch"][:6]) == (ExitCode.PASS, "2.14.1")
    shutil.rmtree(run.path / "step-100")
    code, found = call_json(capsys, "status", root, "--for", "2.14")
    copy = str(run.copies / "step-100")
    assert (code, found["newer_copy"]) == (ExitCode.PASS, copy)
    assert call(capsys, "test-load", copy, "--python", old)[0] == ExitCode.PASS
    assert call(capsys, "protect", root)[0] == ExitCode.PASS


# On an object store.


@pytest.fixture
def bucket(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Give the client of an S3 server with the bucket ``bucket``."""
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as running:
        for name, value in running.variables().items():
            monkeypatch.setenv(name, value)
        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        yield system
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_window_on_an_object_store(bucket: Any, run: Run, capsys: Capture) -> None:
    for version, step in (("2.14.1", 100), ("2.15.0", 200)):
        for path in (DATA / f"torch-{version}" / "plain").iterdir():
            bucket.pipe_file(f"bucket/run/step-{step}/{path.name}", path.read_bytes())
    root = "s3://bucket/run"
    code, found = call_json(capsys, "protect", root, *OPEN)
    assert (code, found["ledger"]) == (ExitCode.INCONCLUSIVE, "s3://bucket/run.keepstep.jsonl")
    assert [mark["name"] for mark in found["window"]["marks"]] == ["step-100"]
    assert any("is_protected" in warning for warning in found["warnings"])
    assert (is_protected(f"{root}/step-100"), is_protected(f"{root}/step-200")) == (True, False)
    code, out, _ = call(capsys, "status", root, "--for", "2.14")
    assert (code, "owner maria" in out) == (ExitCode.PASS, True)
    code, _, err = call(capsys, "prune", root, "--keep", "1")
    assert (code, "local folders only" in err) == (ExitCode.USAGE, True)
    assert call(capsys, "release", root, "--because", "given up")[0] == ExitCode.PASS
    entries = ledger_of(open_store(root)).read()
    assert [entry["what"] for entry in entries] == ["protect", "release"]


@pytest.mark.parametrize("first", [True, False])
def test_of_two_writers_on_an_object_store_one_is_refused(first: bool, bucket: Any) -> None:
    ledger = ledger_of(open_store("s3://bucket/run"))
    if not first:
        with ledger.writing() as pen:
            pen.add("note", number=1)
    with ledger.writing() as one, ledger.writing() as other:
        one.add("note", number=2)
        with pytest.raises(CheckpointError, match="written by somebody else meanwhile"):
            other.add("note", number=3)
    assert [entry["number"] for entry in ledger.read()] == ([2] if first else [1, 2])


def test_a_store_without_conditions_keeps_no_ledger(run: Run, capsys: Capture) -> None:
    system = fsspec.filesystem("memory")
    for path in (DATA / "torch-2.14.1" / "plain").iterdir():
        system.pipe_file(f"/run/step-100/{path.name}", path.read_bytes())
    code, _, err = call(capsys, "protect", "memory://run", *OPEN)
    assert (code, "behind fsspec only S3 does" in err) == (ExitCode.FAIL, True)
    assert call(capsys, "status", "memory://run", "--for", "2.14")[0] == ExitCode.PASS
    system.store.clear()


def test_a_whole_bucket_is_no_run(bucket: Any, run: Run, capsys: Capture) -> None:
    for path in (DATA / "torch-2.14.1" / "plain").iterdir():
        bucket.pipe_file(f"bucket/step-100/{path.name}", path.read_bytes())
    code, _, err = call(capsys, "protect", "s3://bucket", *OPEN)
    assert (code, "below a bucket" in err) == (ExitCode.FAIL, True)
    code, found = call_json(capsys, "status", "s3://bucket", "--for", "2.14")
    assert (code, found["window"], found["ledger_error"]) == (ExitCode.PASS, None, "")
