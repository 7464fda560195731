"""`keepstep explain`: what it prints and how it exits."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.incident import delivery
from keepstep.recorder import arrival
from tests.incident.making import DATA, HEALTHY, SKIP, edit, incident
from tests.recorder.writing import as_pickle, dump, row

Capture = pytest.CaptureFixture[str]
NAME = "comm_lib_trace_rank_"


@pytest.fixture(autouse=True)
def _two_looks_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "APART_S", 0.0)


def run(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    code = execute(["explain", *map(str, arguments)])
    printed = capture.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def run_json(capture: Capture, *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capture, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def delivered(capture: Capture, *arguments: object) -> tuple[int, str, dict[int, str]]:
    """Return exit code, verdict of the delivery, and the reason of each rank that is missing."""
    code, body = run_json(capture, *arguments)
    found = body["delivery"]
    return code, found["verdict"], {each["rank"]: each["reason"] for each in found["why"]}


# Verdicts and exit codes


def test_a_culprit_is_named_and_is_no_failure_unless_asked(capsys: Capture) -> None:
    code, out, err = run(capsys, SKIP)
    assert (code, err) == (ExitCode.PASS, "")
    assert out.startswith("CULPRIT (medium confidence): rank 2 did not enter all_reduce 6")
    assert run(capsys, SKIP, "--fail-on-culprit")[0] == ExitCode.FAIL
    assert run(capsys, HEALTHY, "--fail-on-culprit")[0] == ExitCode.PASS


def test_an_incident_in_json(tmp_path: Path, capsys: Capture) -> None:
    incident(tmp_path)
    code, body = run_json(capsys, tmp_path)
    assert code == ExitCode.PASS
    assert (body["verdict"], body["ranks"], body["fault"]) == ("culprit", [2], "stalled")
    assert [victim["rank"] for victim in body["victims"]] == [0, 1, 3]
    assert {"rank": 2, "kind": "stacks", "file": "", "reason": "stopped"} in body["artifacts"]
    assert len(body["artifacts"]) == 8
    assert "delivery" not in body


def test_several_incidents_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    incident(tmp_path / "one")
    incident(tmp_path / "two")
    code, out, _ = run(capsys, tmp_path)
    assert code == ExitCode.PASS
    assert [line for line in out.splitlines() if line.startswith("attempt")] == [
        "attempt one",
        "attempt two",
    ]
    _, body = run_json(capsys, tmp_path)
    assert [each["attempt"] for each in body["attempts"]] == ["one", "two"]


def test_one_rank_of_512_decides_nothing(tmp_path: Path, capsys: Capture) -> None:
    everyone = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(512)))}}
    waits = row(5, state="scheduled", retired=False, time_discovered_completed_ns=None)
    (tmp_path / f"{NAME}7").write_bytes(as_pickle(dump([row(4), waits], pg_config=everyone)))
    code, body = run_json(capsys, tmp_path)
    assert (code, body["verdict"]) == (ExitCode.INCONCLUSIVE, "unknown")
    assert body["ranks"] == []
    assert body["would_decide"]


# Usage


@pytest.mark.parametrize("count", ["0", "-1", str(1 << 30)])
def test_an_impossible_number_of_ranks_is_refused(count: str, capsys: Capture) -> None:
    code, out, err = run(capsys, SKIP, "--expect", count)
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"--expect {count}: wanted the number of ranks" in err


def test_nothing_there_is_refused(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, tmp_path / "nothing")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "nothing is there; wanted a folder, an archive or a file with dumps" in err


@pytest.mark.parametrize("arguments", [(), ("--expect", "8"), ("--json",), ("--fail-on-culprit",)])
def test_a_folder_without_dumps_is_refused_whatever_is_asked(
    arguments: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    assert run(capsys, tmp_path, *arguments)[:2] == (ExitCode.USAGE, "")
    for number in range(3):
        (tmp_path / f"picture_{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, out, err = run(capsys, tmp_path, *arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "no usable recorder dump" in err


@pytest.mark.timeout(60)
def test_a_huge_file_and_devices_are_refused_at_once(tmp_path: Path, capsys: Capture) -> None:
    with open(tmp_path / f"{NAME}0", "wb") as file:
        file.truncate(10 << 30)
    for path in (tmp_path, tmp_path / f"{NAME}0"):
        code, _, err = run(capsys, path)
        assert code == ExitCode.USAGE
        assert "10737418240 bytes" in err
    os.mkfifo(tmp_path / f"{NAME}1")
    for path in (tmp_path / f"{NAME}1", Path("/dev/zero"), Path("/dev/null")):
        assert run(capsys, path)[0] == ExitCode.USAGE


def test_text_in_a_manifest_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    part = incident(tmp_path)
    evil = "\x1b[2Jx\nHEALTHY: y\ud800"
    edit(part, lambda body: body["members"][2].update(why=evil))
    edit(part, lambda body: body["members"][2]["artifacts"][0].update(reason=evil))
    code, out, _ = run(capsys, tmp_path, "--expect", "5")
    assert code == ExitCode.PASS
    assert "\x1b" not in out
    assert "\\x1b[2Jx\\nHEALTHY" in out
    assert not [line for line in out.splitlines() if line.startswith("HEALTHY")]


# Delivery


def test_all_dumps_arrived(capsys: Capture) -> None:
    code, out, _ = run(capsys, HEALTHY, "--expect", "4")
    assert code == ExitCode.PASS
    assert out.endswith("\ndelivery: the dumps of all 4 ranks arrived\n")
    assert delivered(capsys, HEALTHY, "--expect", "4") == (ExitCode.PASS, "complete", {})


def test_health_is_not_proven_by_dumps_that_are_missing(tmp_path: Path, capsys: Capture) -> None:
    assert run(capsys, HEALTHY, "--expect", "6")[0] == ExitCode.INCONCLUSIVE
    code, out, _ = run(capsys, HEALTHY, "--expect", "6")
    assert out.splitlines()[-2:] == [
        "delivery: 4 of 6 dumps arrived and can be used",
        "  - ranks 4-5 (never-attempted): no file is there; of nccl2, the ranks that detect the "
        "failure write one unasked",
    ]
    assert code == ExitCode.INCONCLUSIVE


def test_a_culprit_stands_although_its_dump_is_missing(capsys: Capture) -> None:
    code, verdict, reasons = delivered(capsys, SKIP, "--expect", "4")
    assert (code, verdict) == (ExitCode.PASS, "incomplete")
    assert reasons == {2: "never-attempted"}
    assert run(capsys, SKIP, "--expect", "4", "--fail-on-culprit")[0] == ExitCode.FAIL


def test_an_incident_knows_why(tmp_path: Path, capsys: Capture) -> None:
    incident(tmp_path, (0, 1, 2), world=4)
    _, out, _ = run(capsys, tmp_path, "--expect", "4")
    assert out.splitlines()[-3:] == [
        "delivery: 2 of 4 dumps arrived and can be used",
        "  - rank 2 (not-reached): stopped",
        "  - rank 3 (lost-with-container): no manifest here says what became of it; add the "
        "folders of the other hosts",
    ]


def test_what_happened_to_a_dump_that_was_in_an_incident(tmp_path: Path, capsys: Capture) -> None:
    part = incident(tmp_path)
    (part / "recorder_rank_0").unlink()
    with open(part / "recorder_rank_1", "ab") as file:
        file.write(b"\0")
    _, verdict, reasons = delivered(capsys, tmp_path, "--expect", "4")
    assert verdict == "incomplete"
    assert reasons == {0: "lost-with-container", 1: "overwritten", 2: "not-reached"}


def test_without_room_for_copies_the_machine_is_to_blame(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    code, out, err = run(capsys, tmp_path)
    assert (code, out) == (ExitCode.INFRASTRUCTURE, "")
    assert "set TMPDIR to a folder with free space" in err


def test_files_that_cannot_be_used_are_no_delivery(tmp_path: Path, capsys: Capture) -> None:
    tree = Path(shutil.copytree(HEALTHY, tmp_path / "tree"))
    whole = (tree / f"{NAME}1").read_bytes()
    (tree / f"{NAME}1").write_bytes(whole[:200])
    (tree / f"{NAME}2").write_bytes(b"")
    (tree / f"{NAME}3").write_bytes(as_pickle(dump([])))
    _, verdict, reasons = delivered(capsys, tree, "--expect", "4")
    assert verdict == "incomplete"
    assert reasons == {1: "truncated", 2: "truncated", 3: "wrong-recorder"}


def test_a_long_list_of_reasons_is_cut_for_people(tmp_path: Path, capsys: Capture) -> None:
    tree = Path(shutil.copytree(HEALTHY, tmp_path / "tree"))
    for rank in range(4, 40):
        (tree / f"{NAME}{rank}").write_bytes(b"")
    _, out, _ = run(capsys, tree, "--expect", "40")
    assert out.splitlines()[-1] == "  - and 16 more; --json has all"
    assert len(delivered(capsys, tree, "--expect", "40")[2]) == 36


def test_a_dump_of_an_earlier_attempt_is_stale(tmp_path: Path, capsys: Capture) -> None:
    hour = 3600 * 10**9
    for rank in range(3):
        rows = [row(number, time_created_ns=10**18 + number + hour) for number in range(5)]
        if rank == 2:
            rows = [row(number, time_created_ns=10**18 + number) for number in range(5)]
        (tmp_path / f"{NAME}{rank}").write_bytes(as_pickle(dump(rows)))
    code, verdict, reasons = delivered(capsys, tmp_path, "--expect", "3")
    assert (verdict, reasons) == ("incomplete", {2: "stale"})
    assert code in (ExitCode.PASS, ExitCode.INCONCLUSIVE)


def test_clocks_that_differ_make_nothing_stale(tmp_path: Path, capsys: Capture) -> None:
    for rank in range(2):
        rows = [row(n, time_created_ns=10**18 + n + rank * 30 * 10**9) for n in range(5)]
        (tmp_path / f"{NAME}{rank}").write_bytes(as_pickle(dump(rows)))
    assert delivered(capsys, tmp_path, "--expect", "2")[1:] == ("complete", {})


def test_dumps_in_an_archive_arrive_and_strangers_are_named(
    tmp_path: Path, capsys: Capture
) -> None:
    archive = tmp_path / "dumps.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for rank in range(4):
            file.write(HEALTHY / f"{NAME}{rank}", f"{NAME}{rank}")
    assert delivered(capsys, archive, "--expect", "4") == (ExitCode.PASS, "complete", {})
    _, body = run_json(capsys, archive, "--expect", "2")
    assert body["delivery"]["verdict"] == "complete"
    assert body["delivery"]["unexpected"] == [str(archive / f"{NAME}{rank}") for rank in (2, 3)]
    _, out, _ = run(capsys, archive, "--expect", "2")
    assert f"  - not expected: {archive / f'{NAME}3'}\n" in out


def test_a_dump_that_still_grows_has_not_arrived(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Path(shutil.copytree(HEALTHY, tmp_path / "tree"))

    def write_on(_: float) -> None:
        with open(tree / f"{NAME}3", "ab") as file:
            file.write(b"\0")

    options = {"apart_s": 0.0, "sleep": write_on}
    monkeypatch.setattr(arrival.observe, "__kwdefaults__", options)
    assert delivered(capsys, tree, "--expect", "4")[1:] == ("incomplete", {3: "growing"})


def test_real_dumps_of_every_kind_exit_without_a_traceback(capsys: Capture) -> None:
    for folder in sorted(path for path in DATA.iterdir() if path.is_dir()):
        code, out, _ = run(capsys, folder, "--expect", "4")
        assert code in (ExitCode.PASS, ExitCode.INCONCLUSIVE), folder
        assert "\ndelivery: " in out
