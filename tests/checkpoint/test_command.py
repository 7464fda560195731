"""`keepstep checkpoint`: what it prints and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from tests.checkpoint.conftest import DATA, Checkpoint

Capture = pytest.CaptureFixture[str]
NEW, OLD = str(DATA / "torch-2.15.0" / "plain"), str(DATA / "torch-2.14.1" / "plain")


def run(capture: Capture, *arguments: str) -> tuple[int, str, str]:
    code = execute(["checkpoint", *arguments])
    printed = capture.readouterr()
    return code, printed.out, printed.err


def run_json(capture: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capture, *arguments, "--json")
    assert err == ""
    assert out.count("\n") == 1
    return code, json.loads(out)


def test_the_group_lists_its_commands_and_is_a_usage_error(capsys: Capture) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (ExitCode.USAGE, "")
    for name in ("inspect", "readers", "downgrade", "verify", "status"):
        assert f"\n  {name} " in err
    code, _, err = run(capsys, "upgrade")
    assert (code, err.splitlines()[0]) == (
        ExitCode.USAGE,
        "keepstep checkpoint: No such command 'upgrade'.",
    )


def test_readers_answers_first_and_says_what_to_do(capsys: Capture) -> None:
    code, out, _ = run(capsys, "readers", NEW)
    lines = out.splitlines()
    assert (code, lines[0]) == (ExitCode.PASS, f"{NEW}: PyTorch 2.15 can load it")
    assert lines[-1] == f"next: keepstep checkpoint downgrade {NEW} --for 2.14"


@pytest.mark.parametrize(
    ("path", "version", "code"),
    [
        (NEW, "2.14", ExitCode.FAIL),
        (NEW, "2.15.0", ExitCode.PASS),
        (OLD, "2.14.1", ExitCode.PASS),
        (OLD, "1.13", ExitCode.USAGE),
        (str(DATA / "torch-2.15.0" / "hf"), "2.5", ExitCode.INCONCLUSIVE),
        (str(DATA / "no-such-folder"), "2.14", ExitCode.USAGE),
    ],
)
def test_readers_for_a_version(path: str, version: str, code: ExitCode, capsys: Capture) -> None:
    assert run(capsys, "readers", path, "--for", version)[0] == code


def test_readers_as_json(capsys: Capture) -> None:
    code, found = run_json(capsys, "readers", NEW)
    assert code == ExitCode.PASS
    assert (found["era"], found["kind"]) == ("D", "dcp")
    assert found["readers"]["2.14"] is False
    assert found["readers"]["2.15"] is True
    assert len(found["readers"]) == 16


def test_inspect_shows_every_tensor_of_a_small_one(capsys: Capture) -> None:
    code, out, _ = run(capsys, "inspect", NEW)
    assert code == ExitCode.PASS
    assert out.startswith(f"{NEW}: 4 tensors, 4 shards, 0 objects, 6.31 kB in 1 file\n")
    assert "  w     float32 [3, 4]\n" in out
    _, found = run_json(capsys, "inspect", NEW)
    (tensor,) = (t for t in found["metadata"][".metadata"]["tensors"] if t["name"] == "w")
    assert (tensor["shape"], tensor["strides"], tensor["bytes"]) == ([3, 4], [4, 1], 48)


def test_downgrade_verify_and_undo(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint()
    before = (folder / ".metadata").read_bytes()
    code, found = run_json(capsys, "downgrade", str(folder), "--for", "2.14", "--dry-run")
    assert (code, found["files"][".metadata"]["strides_dropped"]) == (ExitCode.PASS, 4)
    assert (found["changed"], found["reason"]) == (False, "a dry run")
    assert (folder / ".metadata").read_bytes() == before
    code, out, _ = run(capsys, "downgrade", str(folder), "--for", "2.14")
    assert out.startswith(f"{folder}: PyTorch 2.14 can load it, and newer ones as before\n")
    assert out.endswith(f"take it back: keepstep checkpoint downgrade {folder} --undo\n")
    assert run(capsys, "verify", str(folder), OLD)[0] == ExitCode.PASS
    assert run(capsys, "readers", str(folder), "--for", "2.14")[0] == ExitCode.PASS
    assert run(capsys, "downgrade", str(folder), "--undo")[0] == ExitCode.PASS
    assert (folder / ".metadata").read_bytes() == before
    assert run(capsys, "downgrade", str(folder), "--undo")[0] == ExitCode.FAIL


def test_downgrade_tells_what_is_readable_already_from_what_it_changed(
    checkpoint: Checkpoint, capsys: Capture
) -> None:
    folder = str(checkpoint())
    code, found = run_json(capsys, "downgrade", folder, "--for", "2.14")
    assert (code, found["changed"], found["reason"]) == (ExitCode.PASS, True, None)
    for more in ([], ["--dry-run"]):
        code, found = run_json(capsys, "downgrade", folder, "--for", "2.14", *more)
        assert (code, found["changed"], found["reason"]) == (0, False, "already readable by 2.14")
    _, out, _ = run(capsys, "downgrade", folder, "--for", "2.14")
    assert out.startswith(f"{folder}: PyTorch 2.14 can load it as it is\n")
    assert f"their content was not read: keepstep checkpoint verify {folder}\n" in out


def test_downgrade_into_another_folder(
    checkpoint: Checkpoint, capsys: Capture, tmp_path: Path
) -> None:
    folder, target = checkpoint(), tmp_path / "step-100-old"
    code, out, _ = run(
        capsys, "downgrade", str(folder), str(target), "--for", "2.14", "--placement", "link"
    )
    assert code == ExitCode.PASS
    assert "hard links" in out
    assert run(capsys, "verify", str(target), str(folder))[0] == ExitCode.PASS
    assert run(capsys, "downgrade", str(folder), str(target), "--for", "2.14")[0] == ExitCode.FAIL


@pytest.mark.parametrize(
    "arguments",
    [
        ["downgrade", NEW],
        ["downgrade", NEW, "--for", "2.14", "--undo"],
        ["downgrade", NEW, "--for", "2.99"],
        ["downgrade", NEW, "--for", "2.14", "--placement", "copy"],
        ["status", NEW],
        ["readers"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str], capsys: Capture) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err


def test_verify_names_the_damaged_file(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint()
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    code, out, _ = run(capsys, "verify", str(folder))
    assert (code, out.splitlines()[0]) == (ExitCode.FAIL, f"{folder}: damaged")
    assert "  damage: __0_0.distcp: w at byte 0: " in out
    step = next(line for line in out.splitlines() if line.startswith("next: "))
    assert step.startswith("next: bring the file back from a copy of this checkpoint")
    code, found = run_json(capsys, "verify", str(folder))
    assert (code, found["verdict"]) == (ExitCode.FAIL, "fail")
    assert f"next: {found['findings'][0]['mend']}" == step


def test_a_difference_fails_and_a_hint_is_inconclusive(
    checkpoint: Checkpoint, capsys: Capture
) -> None:
    folder = checkpoint()
    assert run(capsys, "verify", str(folder), str(checkpoint("zero_d", name="b")))[0] == 1
    (folder / "__0_0.distcp").touch()
    assert run(capsys, "verify", str(folder))[0] == ExitCode.INCONCLUSIVE


def test_status(checkpoint: Checkpoint, capsys: Capture, tmp_path: Path) -> None:
    checkpoint(version="2.14.1", name="step-100")
    checkpoint(name="step-150")
    code, out, _ = run(capsys, "status", str(tmp_path), "--for", "2.14")
    assert code == ExitCode.PASS
    assert (
        out.splitlines()[0] == f"{tmp_path}: PyTorch 2.14 can go back to step-100, 50 steps behind"
    )
    assert f"keepstep checkpoint downgrade {tmp_path}/step-150 --for 2.14 --dry-run" in out
    code, found = run_json(capsys, "status", str(tmp_path), "--for", "2.3")
    assert (code, found["behind"]) == (ExitCode.FAIL, None)


def test_hostile_metadata_ends_in_one_line(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint()
    (folder / ".metadata").write_bytes(b"\x80\x04cos\nsystem\n.")
    for command in (["inspect"], ["readers"], ["downgrade", "--for", "2.14"]):
        code, out, err = run(capsys, command[0], str(folder), *command[1:])
        assert (code, out) == (ExitCode.FAIL, "")
        assert "opcode 0x63" in err
        assert err.count("\n") == 1


def test_a_missing_data_file_is_damage_and_no_failure_of_the_machine(
    checkpoint: Checkpoint, capsys: Capture
) -> None:
    folder = checkpoint("objects")
    next(folder.glob("*.distcp")).unlink()
    code, _, err = run(capsys, "downgrade", str(folder), "--for", "2.14")
    assert (code, "0.distcp: missing; .metadata stores" in err) == (ExitCode.FAIL, True)
    assert f"keepstep checkpoint verify {folder}" in err


def test_a_target_whose_folder_is_missing(
    checkpoint: Checkpoint, tmp_path: Path, capsys: Capture
) -> None:
    target = tmp_path / "no" / "target"
    folder = checkpoint()
    code, _, err = run(capsys, "downgrade", str(folder), str(target), "--for", "2.14")
    assert (code, f"mkdir -p {target.parent}" in err) == (ExitCode.FAIL, True)


def test_a_run_taken_for_a_checkpoint_and_a_checkpoint_for_a_run(capsys: Capture) -> None:
    root = Path(NEW).parent
    code, _, err = run(capsys, "readers", str(root))
    assert (code, f"keepstep checkpoint status {root} --for MINOR" in err) == (ExitCode.FAIL, True)
    code, _, err = run(capsys, "status", NEW, "--for", "2.14")
    assert (code, "this is one checkpoint" in err) == (ExitCode.FAIL, True)


def test_inspect_does_not_count_what_it_does_not_read(capsys: Capture) -> None:
    code, out, _ = run(capsys, "inspect", str(DATA / "torch-2.15.0" / "hf"))
    assert (code, "0 tensors" in out) == (ExitCode.PASS, False)
    assert "a folder of safetensors files" in out
