"""From a path to evidence: incidents of ours, and any folder of dumps."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Life
from keepstep.diagnosis.verdict import Fault
from keepstep.incident.gather import Gathered, errors, gather, no_dump
from keepstep.incident.manifest import DUMP, NAME, STACKS
from keepstep.recorder.model import Frame
from tests.incident.making import SKIP, WAITS, edit, incident
from tests.recorder.writing import as_pickle, dump, row

STACK = (Frame("step", "/srv/train.py", 31), Frame("main", "/srv/train.py", 9))


def only(path: Path) -> Gathered:
    (found,) = gather(path)
    return found


def ranks(found: Gathered) -> list[int]:
    return sorted(dump.rank for dump in found.evidence.dumps if dump.rank is not None)


def missing(found: Gathered) -> dict[tuple[int, str], str]:
    return {(each.rank, each.kind): each.reason for each in found.arrivals if not each.file}


# Incidents


def test_an_incident_of_one_host(tmp_path: Path) -> None:
    part = incident(tmp_path / "job")
    found = only(tmp_path / "job")
    assert ranks(found) == [0, 1, 3]
    assert {dump.host for dump in found.evidence.dumps} == {"host-a"}
    assert {dump.path.parent for dump in found.evidence.dumps} == {part}
    assert found.evidence.expected_ranks == frozenset((0, 1, 2, 3))
    seen = found.evidence.observations
    assert (seen[2].life, seen[2].missing_dump) == (Life.STOPPED, "stopped")
    assert (seen[0].life, seen[0].stack, seen[0].step) == (Life.ALIVE, STACK, 6)
    assert missing(found) == {(2, DUMP): "stopped", (2, STACKS): "stopped"}
    assert errors(found) == []


def test_the_folder_of_one_host_is_an_incident_too(tmp_path: Path) -> None:
    part = incident(tmp_path / "job")
    assert only(part) == only(tmp_path / "job")


def test_an_incident_of_two_hosts(tmp_path: Path) -> None:
    incident(tmp_path, (0, 1), "host-a")
    incident(tmp_path, (2, 3), "host-b")
    found = only(tmp_path)
    assert [m.host for m in found.manifests] == ["host-a", "host-b"]
    assert {dump.rank: dump.host for dump in found.evidence.dumps} == {
        0: "host-a",
        1: "host-a",
        3: "host-b",
    }
    assert found.evidence.observations[2].life is Life.STOPPED, "the host of a rank knows best"
    assert found.evidence.observations[0].stack == STACK


def test_a_folder_of_incidents_gives_each_of_them(tmp_path: Path) -> None:
    incident(tmp_path / "b", (0, 1, 2, 3))
    incident(tmp_path / "a", (0, 1))
    found = gather(tmp_path)
    assert [(each.attempt, ranks(each)) for each in found] == [("a", [0, 1]), ("b", [0, 1, 3])]


def test_a_half_written_part_is_no_part(tmp_path: Path) -> None:
    incident(tmp_path, (0, 1), "host-a")
    incident(tmp_path, (2, 3), ".host-b.tmp")
    assert [m.host for m in only(tmp_path).manifests] == ["host-a"]


@pytest.mark.parametrize("kind", [DUMP, STACKS])
def test_an_artifact_that_changed_is_not_used(tmp_path: Path, kind: str) -> None:
    part = incident(tmp_path)
    name = {DUMP: "recorder_rank_1", STACKS: "stacks_rank_1.txt"}[kind]
    with open(part / name, "ab") as file:
        file.write(b"\n")
    found = only(tmp_path)
    assert "SHA-256 differs" in missing(found)[1, kind]
    assert (1 in ranks(found)) == (kind == STACKS)
    assert bool(found.evidence.observations[1].stack) == (kind == DUMP)
    assert ("changed" in found.evidence.observations[1].missing_dump) == (kind == DUMP)


def test_an_artifact_that_is_gone_is_missing(tmp_path: Path) -> None:
    part = incident(tmp_path)
    (part / "recorder_rank_1").unlink()
    found = only(tmp_path)
    assert missing(found)[1, DUMP] == "it is not there any more"
    assert ranks(found) == [0, 3]


def test_a_missing_artifact_without_a_reason_says_so(tmp_path: Path) -> None:
    part = incident(tmp_path)
    edit(part, lambda body: body["members"][2]["artifacts"][0].update(reason=""))
    assert missing(only(tmp_path))[2, DUMP] == "missing, and nothing says why"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "..", ".", "a/../b", "a\0b", "\ud800", "x" * 5000]
)
def test_a_manifest_cannot_point_out_of_its_folder(tmp_path: Path, name: str) -> None:
    part = incident(tmp_path / "job")
    secret = (part / "recorder_rank_0").read_bytes()
    (tmp_path / "job" / "secret").write_bytes(secret)
    edit(part, lambda body: body["members"][1]["artifacts"][0].update(file=name))
    found = only(tmp_path / "job")
    assert ranks(found) == [0, 3]
    assert missing(found)[1, DUMP]


def test_a_manifest_that_is_broken_does_not_hide_the_dumps(tmp_path: Path) -> None:
    part = incident(tmp_path)
    (part / NAME).write_text("{")
    found = only(tmp_path)
    assert ranks(found) == [0, 1, 3]
    assert [each.code for each in errors(found)] == ["manifest"]
    assert found.manifests == ()
    assert found.evidence.observations[0].stack == STACK
    assert 2 not in found.evidence.observations


def test_one_broken_manifest_of_two(tmp_path: Path) -> None:
    incident(tmp_path, (0, 1), "host-a")
    part = incident(tmp_path, (2, 3), "host-b")
    (part / NAME).write_bytes(b"\x80")
    found = only(tmp_path)
    assert ranks(found) == [0, 1, 3]
    assert [m.host for m in found.manifests] == ["host-a"]


def test_without_a_manifest_it_is_a_folder_of_dumps(tmp_path: Path) -> None:
    part = incident(tmp_path)
    (part / NAME).unlink()
    found = only(part)
    assert ranks(found) == [0, 1, 3]
    assert found.evidence.observations[0].stack == STACK
    assert missing(found) == {(2, DUMP): "no file of this rank is there"}


def test_only_what_the_manifest_names_is_read(tmp_path: Path) -> None:
    part = incident(tmp_path)
    other = as_pickle(dump([row(number) for number in range(50)]))
    (part / "recorder_rank_0.json").write_bytes(other)
    (part / "sub").mkdir()
    (part / "sub" / "recorder_rank_1").write_bytes(other)
    (part / "recorder_rank_2").write_bytes(other)
    for number in range(300):
        (part / f"junk_rank_{number}").write_bytes(b"junk")
    clean = incident(tmp_path / "clean")
    assert [d.dump for d in only(part).evidence.dumps] == [
        d.dump for d in only(clean).evidence.dumps
    ]
    assert errors(only(part)) == []


def test_two_dumps_of_one_rank_are_not_both_used(tmp_path: Path) -> None:
    part = incident(tmp_path)
    shutil.copy(part / "recorder_rank_0", part / "again")

    def name_it(body: dict[str, Any]) -> None:
        artifacts = body["members"][0]["artifacts"]
        artifacts.append({**artifacts[0], "file": "again"})

    edit(part, name_it)
    assert missing(only(tmp_path))[0, DUMP] == "a second recorder dump of this rank"


def test_a_hostile_pickle_is_not_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    part = incident(tmp_path)
    data = pickle.dumps(Evil())
    (part / "recorder_rank_1").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    edit(part, lambda body: body["members"][1]["artifacts"][0].update(sha256=digest))
    found = only(tmp_path)
    assert not (tmp_path / "executed").exists()
    assert ranks(found) == [0, 3]
    (refusal,) = errors(found)
    assert (refusal.code, refusal.path) == ("hostile", str(part / "recorder_rank_1"))


# Links, pipes, sizes


def test_links_in_an_incident_are_not_followed(tmp_path: Path) -> None:
    part = incident(tmp_path / "job")
    for name in ("recorder_rank_1", "stacks_rank_0.txt"):
        shutil.move(part / name, tmp_path / name)
        (part / name).symlink_to(tmp_path / name)
    found = only(tmp_path / "job")
    assert missing(found)[1, DUMP] == "a link, which is not followed"
    assert missing(found)[0, STACKS] == "a link, which is not followed"
    assert ranks(found) == [0, 3]
    assert not found.evidence.observations[0].stack


def test_a_manifest_behind_a_link_is_not_read(tmp_path: Path) -> None:
    part = incident(tmp_path / "job")
    shutil.move(part / NAME, tmp_path / NAME)
    (part / NAME).symlink_to(tmp_path / NAME)
    found = only(tmp_path / "job")
    assert found.manifests == ()
    assert "a link" in errors(found)[0].text


def test_a_host_behind_a_link_is_not_read(tmp_path: Path) -> None:
    incident(tmp_path / "elsewhere")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "host-a").symlink_to(tmp_path / "elsewhere" / "host-a")
    assert no_dump(only(tmp_path / "job"))


def test_a_dump_behind_a_link_out_of_a_tree_is_not_used(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(SKIP, tmp_path / "tree"))
    name = "comm_lib_trace_rank_0"
    shutil.move(tree / name, tmp_path / name)
    (tree / name).symlink_to(tmp_path / name)
    (tree / "newest_rank_1").symlink_to(tree / "comm_lib_trace_rank_1")
    (tree / "all").symlink_to(tmp_path)
    found = only(tree)
    assert ranks(found) == [1, 3]
    assert [(each.code, each.path) for each in errors(found)] == [("link", str(tree / name))]
    (tmp_path / "itself").symlink_to(tree)
    assert ranks(only(tmp_path / "itself")) == [1, 3]


@pytest.mark.timeout(60)
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    part = incident(tmp_path)
    for name in ("recorder_rank_1", "stacks_rank_0.txt"):
        (part / name).unlink()
        os.mkfifo(part / name)
    found = only(tmp_path)
    assert missing(found)[1, DUMP] == missing(found)[0, STACKS] == "no regular file"
    (part / NAME).unlink()
    os.mkfifo(part / NAME)
    for name in ("ras.json", "pyspy_rank_1.json"):
        os.mkfifo(part / name)
    assert ranks(only(tmp_path)) == ranks(only(part)) == [0, 3]


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10 << 30)


@pytest.mark.timeout(60)
def test_files_of_ten_gigabytes_are_refused_without_reading_them(tmp_path: Path) -> None:
    part = incident(tmp_path)
    sparse(part / "recorder_rank_1")
    sparse(part / "stacks_rank_0.txt")
    found = only(tmp_path)
    assert "10737418240 bytes" in missing(found)[1, DUMP]
    assert "10737418240 bytes" in missing(found)[0, STACKS]
    sparse(part / NAME)
    assert "10737418240 bytes" in errors(only(tmp_path))[0].text


# Plain trees


def attempt(folder: Path, shift_ns: int) -> None:
    folder.mkdir(parents=True)
    for rank in range(2):
        rows = [row(n, time_created_ns=10**18 + shift_ns + n) for n in range(3 + rank)]
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(as_pickle(dump(rows)))


def test_each_attempt_of_a_tree_with_the_notes_nearest_to_it(tmp_path: Path) -> None:
    attempt(tmp_path / "attempt_1" / "dumps", 0)
    attempt(tmp_path / "attempt_2" / "dumps", 10**12)
    (tmp_path / "attempt_1" / "stacks").mkdir()
    (tmp_path / "attempt_1" / "stacks" / "pyspy_rank_1.txt").write_text(WAITS)
    (tmp_path / "stacks_rank_0.txt").write_text(WAITS)
    first, second = gather(tmp_path)
    assert (first.attempt, second.attempt) == ("attempt_1", "attempt_2")
    assert set(first.evidence.observations) == {0, 1}
    assert set(second.evidence.observations) == {0}, "the stacks of rank 1 are of attempt 1"


@pytest.mark.parametrize(
    "name",
    ["pyspy_rank_2.json", "py-spy.2.txt", "stacks_rank_2.txt", "node7_stack_2.log",
     "stacks_host3_rank_2.txt", "Traceback-2.LOG"],
)  # fmt: skip
def test_names_of_files_with_stacks(tmp_path: Path, name: str) -> None:
    tree = Path(shutil.copytree(SKIP, tmp_path / "tree"))
    (tree / name).write_text(WAITS)
    found = only(tree)
    assert found.evidence.observations[2].stack == STACK
    assert [a.rank for a in found.arrivals if a.kind == STACKS] == [2]
    assert not [each for each in found.evidence.findings if each.path.endswith(name)]


@pytest.mark.parametrize("name", ["pyspy_28732.json", "stacks_123456789.txt", "stacks.txt"])
def test_a_number_that_is_no_rank_is_not_taken_for_one(tmp_path: Path, name: str) -> None:
    tree = Path(shutil.copytree(SKIP, tmp_path / "tree"))
    (tree / name).write_text(WAITS)
    assert only(tree).evidence.observations == {}


def test_an_answer_of_ras_beside_dumps(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(SKIP, tmp_path / "tree"))
    missing_ranks = [{"rank": 2, "status": {"considered_dead": True}}]
    whole = {"hash": "0xa", "size": 4, "ranks": [], "missing_ranks": missing_ranks}
    body = {"nccl_version": "2.28.9", "communicators": [whole]}
    (tree / "ras.json").write_text(json.dumps(body))
    assert only(tree).evidence.observations[2].life is Life.DEAD


def test_names_and_notes_that_cannot_be_used_raise_nothing(tmp_path: Path) -> None:
    tree = Path(shutil.copytree(SKIP, tmp_path / "tree"))
    (tree / "stacks_rank_1.txt").symlink_to("/etc/passwd")
    (tree / "stacks_rank_9.txt").symlink_to(tree / "stacks_rank_9.txt")
    (tree / "ras.json").symlink_to("/dev/zero")
    with open(os.fsencode(tree) + b"/stacks_\xff_rank_3.txt", "w") as file:
        file.write("no stacks")
    os.mkdir(os.fsencode(tree) + b"/\xfe")
    found = only(tree)
    assert ranks(found) == [0, 1, 3]
    assert set(found.evidence.observations) == {3}
    assert found.evidence.observations[3].stack == ()


def test_nothing_there_raises_and_nothing_usable_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gather(tmp_path / "nothing")
    assert no_dump(only(tmp_path))


def test_a_rank_whose_step_raised_is_named_although_everybody_lives(tmp_path: Path) -> None:
    part = incident(tmp_path, ranks=(0, 1, 3), world=4)

    def raised(body: dict[str, Any]) -> None:
        text = "ValueError: no sample\n17" + "." * 1000
        body["faults"] = [{"rank": 1, "worker": 1, "fault": "raise", "evidence": text}]

    edit(part, raised)
    verdict = diagnose(only(tmp_path).evidence)
    assert (verdict.ranks, verdict.fault) == ((1,), Fault.RAISED)
    assert verdict.headline.startswith("rank 1 raised ValueError: no sample 17")
    assert len(verdict.headline) < 300


def test_the_dead_come_before_those_that_raised(tmp_path: Path) -> None:
    part = incident(tmp_path, ranks=(0, 1, 3), world=4)

    def both(body: dict[str, Any]) -> None:
        body["faults"] = [{"rank": 1, "worker": 1, "fault": "raise", "evidence": "ValueError"}]
        body["members"][3].update(life="dead", why="killed by SIGKILL", artifacts=[])

    edit(part, both)
    assert diagnose(only(tmp_path).evidence).ranks == (3,)
