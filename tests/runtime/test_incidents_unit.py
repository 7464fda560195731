"""The agent's side of evidence, without a job: what is kept, what is lost, and what it costs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstep.incident.manifest import DUMP, NAME, STACKS, Artifact, Manifest
from keepstep.runtime import incidents, vault
from keepstep.runtime import protocol as p
from keepstep.runtime.agent_config import AgentConfig
from keepstep.runtime.agent_events import AgentEvents
from keepstep.runtime.evidence import Evidence
from keepstep.runtime.incidents import (
    NO_PY_SPY,
    IncidentWriter,
    Judge,
    ProcessFacts,
    Witnesses,
    ending,
    remove_old,
)
from keepstep.runtime.processes import Processes
from tests.incident.making import incident

MEMBERS = [[0, 10, "a", "host"], [1, 11, "a", "host"], [2, 12, "b", "far"]]
OURS = {10: ProcessFacts(pid=1, committed=5), 11: ProcessFacts(pid=2, committed=5)}
STOPPED = {"rank": 1, "worker": 11, "fault": "stop", "evidence": "its process is stopped"}


class Place:
    """An agent's folders: what ranks left in its vault, and where incidents go."""

    def __init__(self, folder: Path, kept: int = 20) -> None:
        self.vault, self.incidents = folder / "vault", folder / "incidents"
        self.vault.mkdir()
        self.config = AgentConfig(
            name="a",
            host="host",
            coordinator=("", 0),
            secret="",
            workers=2,
            spares=0,
            backend="gloo",
            command=[],
            vault=self.vault,
            incidents=self.incidents,
            kept_incidents=kept,
        )
        self.witnesses = Witnesses(self.vault)
        self.writer = IncidentWriter(self.config, self.witnesses)

    def left(self, wid: int, dump: bytes = b"dump", stacks: bytes = b"stacks") -> None:
        vault.dump_path(self.vault, wid, 1).write_bytes(dump)
        vault.stacks_path(self.vault, wid, 1).write_bytes(stacks)

    def write(
        self,
        number: int = 1,
        faults: tuple[dict[str, Any], ...] = (STOPPED,),
        ours: dict[int, ProcessFacts] | None = None,
    ) -> Path:
        return self.writer.write(message(number, faults), OURS if ours is None else ours)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.incidents.iterdir())


def message(number: int = 1, faults: tuple[dict[str, Any], ...] = (STOPPED,)) -> p.Incident:
    return p.Incident(
        name=f"job-generation-{number:04d}-stop-rank-1",
        generation=1,
        step=5,
        members=MEMBERS,
        faults=list(faults),
        outcome="generation 2 at step 5",
        lead="a",
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def artifacts(folder: Path) -> dict[tuple[int, str], Artifact]:
    manifest = Manifest.from_json((folder / NAME).read_text())
    return {(m.rank, a.kind): a for m in manifest.members for a in m.artifacts}


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


# One incident


def test_what_ranks_left_moves_into_the_folder(place: Place) -> None:
    place.left(10)
    folder = place.write()
    manifest = Manifest.from_json((folder / NAME).read_text())
    assert [(m.rank, m.life, m.step, m.agent) for m in manifest.members] == [
        (0, "alive", 5, "a"),
        (1, "stopped", 5, "a"),
        (2, "alive", None, "b"),
    ]
    found = artifacts(folder)
    assert (folder / found[0, DUMP].file).read_bytes() == b"dump"
    assert (folder / found[0, STACKS].file).read_bytes() == b"stacks"
    assert found[1, DUMP] == Artifact(kind=DUMP, reason="its process is stopped")
    assert (2, DUMP) not in found, "the other host writes what it knows of its ranks"
    assert list(place.vault.iterdir()) == []
    assert [path.name for path in folder.parent.iterdir()] == ["a"], "nothing temporary is left"


@pytest.mark.parametrize(
    ("facts", "fault", "life", "reason"),
    [
        (ProcessFacts(pid=2, committed=5, ended="killed by SIGKILL"), None, "dead", "SIGKILL"),
        (ProcessFacts(pid=2, committed=5), {**STOPPED, "fault": "gil"}, "unresponsive", "stopped"),
        (ProcessFacts(pid=2, committed=5), {**STOPPED, "fault": "oom"}, "dead", "gone before"),
        (ProcessFacts(pid=2, committed=5), {**STOPPED, "fault": "hang"}, "alive", "stopped"),
    ],
)
def test_what_is_missing_has_a_reason(
    place: Place, facts: ProcessFacts, fault: dict[str, Any] | None, life: str, reason: str
) -> None:
    folder = place.write(faults=(fault or {**STOPPED, "worker": 10},), ours={11: facts})
    manifest = Manifest.from_json((folder / NAME).read_text())
    assert manifest.members[1].life == life
    assert reason in artifacts(folder)[1, DUMP].reason


def test_a_dump_from_before_the_last_commit_of_a_lost_rank_is_not_used(place: Place) -> None:
    place.left(10)
    place.left(11)
    for path in place.vault.iterdir():
        age(path, 5)
    for wid in (10, 11):
        (place.vault / f"rank-{wid}.0").write_bytes(b"a record")
    killed = ProcessFacts(pid=2, committed=5, ended="killed by SIGKILL")
    folder = place.write(ours={10: OURS[10], 11: killed})
    found = artifacts(folder)
    assert found[0, DUMP].file, "a survivor has committed since because it goes on"
    assert not found[1, DUMP].file
    assert not found[1, STACKS].file
    assert sorted(path.name for path in place.vault.iterdir()) == ["rank-10.0", "rank-11.0"]


@pytest.mark.parametrize("size", [0, incidents.MOST_BYTES + 1])
def test_an_empty_or_huge_artifact_is_left_out(place: Place, size: int) -> None:
    place.left(10)
    os.truncate(vault.dump_path(place.vault, 10, 1), size)
    found = artifacts(place.write())
    assert found[0, DUMP] == Artifact(
        kind=DUMP, size=size, reason=f"{size} bytes: empty, or more than is kept"
    )
    assert found[0, STACKS].file


# What goes wrong


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.left(10)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", full)
        with pytest.raises(OSError, match="No space left"):
            place.write()
    assert place.names() == []
    assert list(place.vault.iterdir()) == [], "memory is given back"
    place.left(10)
    assert artifacts(place.write(2))[0, DUMP].file


def test_a_disk_that_fills_up_with_the_manifest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.left(10)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        place.write()
    assert place.names() == []


def test_a_folder_that_is_a_file(place: Place) -> None:
    place.incidents.write_text("")
    with pytest.raises(OSError, match="incidents"):
        place.write()


def test_what_another_host_wrote_survives_our_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.incidents / message().name / "b").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        place.write()
    assert place.names() == [message().name]


def test_what_a_killed_agent_left_is_replaced(place: Place) -> None:
    half = place.incidents / message().name / ".a.tmp"
    half.mkdir(parents=True)
    (half / "recorder_rank_7").write_text("half")
    folder = place.write()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a"]
    assert not (folder / "recorder_rank_7").exists()


def test_an_agent_tells_what_was_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    processes = Processes(place.config, lambda _: None, lambda _: None)
    events = AgentEvents("a", "host", told.append)
    evidence = Evidence(place.config, processes, events, lambda _: None)
    monkeypatch.setattr(os, "fsync", full)
    asyncio.run(evidence.write(message()))
    assert [(fact["event"], fact["incident"]) for fact in told] == [
        ("incident_lost", message().name)
    ]
    assert "No space left" in told[0]["why"]


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.end()


def test_an_incident_is_judged_by_a_process_of_its_own(tmp_path: Path, judge: Judge) -> None:
    part = incident(tmp_path)
    verdict = asyncio.run(judge.verdict(part))
    assert verdict is not None
    assert (verdict["verdict"], verdict["ranks"]) == ("culprit", [2])
    assert json.loads((part / "verdict.json").read_text()) == verdict
    assert (part / "verdict.txt").read_text().startswith("CULPRIT")
    assert [path.name for path in part.iterdir() if path.name.startswith(".")] == []
    assert asyncio.run(judge.verdict(tmp_path / "nothing")) is None
    assert asyncio.run(judge.verdict(part)) == verdict, "one that failed does not spoil the next"


def test_a_judge_that_never_answers_is_replaced(
    tmp_path: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = incident(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(incidents, "JUDGE_LIMIT", 0.0)
        assert asyncio.run(judge.verdict(part)) is None
    verdict = asyncio.run(judge.verdict(part))
    assert verdict is not None
    assert verdict["ranks"] == [2]


def test_a_judge_ends_with_its_agent() -> None:
    judge = Judge()
    judge.prepare()
    process = judge._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    judge.end()


# Retention


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    place = Place(tmp_path, kept=3)
    for number in range(1, 7):
        folder = place.write(number)
        age(folder.parent, 100 - number)
    place.write(7)
    assert place.names() == [message(number).name for number in (5, 6, 7)]


def make(folder: Path, number: int, size: int, seconds: float) -> Path:
    path = folder / message(number).name
    (path / "a").mkdir(parents=True)
    (path / "a" / NAME).write_text("{}")
    with open(path / "a" / "recorder_rank_0", "wb") as file:
        file.truncate(size)
    age(path, seconds)
    return path


def test_the_oldest_go_first_when_they_are_too_large_together(tmp_path: Path) -> None:
    for number in range(1, 6):
        make(tmp_path, number, 100, 50 - number)
    remove_old(tmp_path, keep=20, most_bytes=320)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        message(number).name for number in (3, 4, 5)
    ]


def test_the_newest_stays_whatever_its_size(tmp_path: Path) -> None:
    make(tmp_path, 1, 10, 9)
    newest = make(tmp_path, 2, 10_000, 1)
    remove_old(tmp_path, keep=20, most_bytes=320)
    assert list(tmp_path.iterdir()) == [newest]


def test_a_gibibyte_is_the_limit() -> None:
    assert incidents.MOST_KEPT_BYTES == 1 << 30
    assert (remove_old.__kwdefaults__ or {})["most_bytes"] == 1 << 30


def test_nothing_but_incidents_is_ever_removed(tmp_path: Path) -> None:
    project = tmp_path / "my-web-project" / "public"
    project.mkdir(parents=True)
    (project / NAME).write_text("{}")
    (tmp_path / "job-generation-0001-notes").mkdir()
    (tmp_path / "job-generation-0002-file").write_text("")
    outside = make(tmp_path / "elsewhere", 3, 10, 99)
    (tmp_path / "link-generation-0003-x").symlink_to(outside)
    names = sorted(path.name for path in tmp_path.iterdir())
    make(tmp_path, 4, 10, 5)
    make(tmp_path, 5, 10, 1)
    remove_old(tmp_path, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, message(5).name])
    assert (outside / "a" / NAME).exists()


def test_what_a_killed_agent_left_is_removed_in_its_turn(tmp_path: Path) -> None:
    half = tmp_path / message(1).name / ".a.tmp"
    half.mkdir(parents=True)
    age(half.parent, 9)
    make(tmp_path, 2, 10, 1)
    remove_old(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == [message(2).name]


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_old(tmp_path / "nothing", keep=1)


# Witnesses


def test_ranks_are_asked_once_a_suspicion(tmp_path: Path) -> None:
    witnesses = Witnesses(tmp_path)
    assert [witnesses.call(), witnesses.call()] == [True, False]
    witnesses.dismiss(1)
    assert witnesses.call()


def test_what_was_left_in_a_suspicion_that_passed_is_removed(tmp_path: Path) -> None:
    names = ["dump-1.1", "stacks-1.1", "pyspy-1.1", "dump-1.2", "rank-1.1"]
    for name in names:
        (tmp_path / name).write_text("x")
    witnesses = Witnesses(tmp_path)
    witnesses.dismiss(1)
    assert len(list(tmp_path.iterdir())) == 5, "nobody was asked"
    witnesses.call()
    witnesses.dismiss(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump-1.2", "rank-1.1"]


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def looking(tmp_path: Path, text: str) -> Witnesses:
    return _with(Witnesses(tmp_path), program(tmp_path, text))


def _with(witnesses: Witnesses, path: str) -> Witnesses:
    witnesses._program = path
    return witnesses


def test_a_silent_process_is_looked_into_from_outside(tmp_path: Path) -> None:
    witnesses = looking(tmp_path, "print(sys.argv[1:])")
    witnesses.look_into(3, 4711, 1)
    witnesses.look_into(3, 4711, 1)
    found = witnesses.found(3, 1)
    assert isinstance(found, Path)
    assert found.read_text() == "['dump', '--json', '--nonblocking', '--pid', '4711']\n"
    assert witnesses.found(3, 1) == "", "nobody has looked again"


def test_a_look_that_fails_says_how(tmp_path: Path) -> None:
    witnesses = looking(tmp_path, "sys.exit(1)")
    witnesses.look_into(3, 4711, 1)
    assert witnesses.found(3, 1) == (
        "py-spy ended with status 1: the process was gone, or ptrace is not allowed"
    )


def test_a_look_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "LOOK_LIMIT", 0.2)
    witnesses = looking(tmp_path, "time.sleep(60)")
    witnesses.look_into(3, 4711, 1)
    assert witnesses.found(3, 1) == "py-spy did not end"


def test_a_look_that_cannot_start_does_not_end_the_watch(tmp_path: Path) -> None:
    witnesses = _with(Witnesses(tmp_path), str(tmp_path / "uninstalled"))
    witnesses.look_into(3, 4711, 1)
    assert witnesses.found(3, 1) == "py-spy could not start: No such file or directory"
    witnesses = _with(Witnesses(tmp_path / "full"), sys.executable)
    witnesses.look_into(3, 4711, 1)
    assert "could not start" in str(witnesses.found(3, 1))


def test_without_py_spy_the_reason_says_how_to_get_it(place: Place) -> None:
    place.witnesses._program = None
    place.witnesses.look_into(11, 4711, 1)
    assert NO_PY_SPY in artifacts(place.write())[1, STACKS].reason


def test_stacks_of_py_spy_are_taken(place: Place, tmp_path: Path) -> None:
    place.witnesses._program = program(tmp_path, "print('[]')")
    place.witnesses.look_into(11, 4711, 1)
    found = artifacts(place.write())[1, STACKS]
    assert (found.file, found.how, found.size) == ("pyspy_rank_1.json", "py-spy", 3)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (3, "exited with code 3"), (-9, "killed by SIGKILL"),
     (-250, "killed by signal 250")],
)  # fmt: skip
def test_how_a_process_ended(code: int, words: str) -> None:
    assert ending(code) == words
