"""Incident folders of real runs: complete, bounded, and naming the rank that was to blame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepstep.incident.manifest import DUMP, STACKS, Manifest
from tests.running import inject, run

pytestmark = pytest.mark.timeout(700)
SCRIPT = ("tests/jobs/groups.py", "36")


def incidents(folder: Path) -> list[tuple[Manifest, dict[str, Any], Path]]:
    """Every incident of a run on one host, oldest first: manifest, verdict, folder."""
    found = []
    for path in sorted((folder / "incidents").glob("*/*/manifest.json")):
        verdict = json.loads((path.parent / "verdict.json").read_text())
        found.append((Manifest.from_json(path.read_text()), verdict, path.parent))
    return found


def missing(manifest: Manifest) -> dict[tuple[int, str], str]:
    """What is not there, and why."""
    return {
        (facts.rank, artifact.kind): artifact.reason
        for facts in manifest.members
        for artifact in facts.artifacts
        if not artifact.file
    }


def test_stalls_leave_complete_evidence_that_names_the_rank(tmp_path: Path) -> None:
    faults = inject("stop@8:2", "hang@16:0", "gil@24:1")
    found = run(
        tmp_path, "--workers", "3", "--spares", "3", "--patience", "2", *faults, script=SCRIPT
    )
    assert found.exit_code == 0, found.output
    stopped, hung, held = incidents(tmp_path)
    for (manifest, verdict, folder), rank in ((stopped, 2), (hung, 0), (held, 1)):
        assert [facts.rank for facts in manifest.members] == [0, 1, 2]
        assert (verdict["verdict"], verdict["ranks"]) == ("culprit", [rank]), verdict["headline"]
        assert verdict["fault"] == "stalled"
        assert f"rank {rank}" in (folder / "verdict.txt").read_text().splitlines()[0]
        assert all((folder / a.file).stat().st_size == a.size for f in manifest.members
                   for a in f.artifacts if a.file)  # fmt: skip
    assert missing(hung[0]) == {}, "a rank that sleeps answers from its side thread"
    absent = dict(missing(stopped[0]))
    why = absent.pop((2, STACKS), "the process was gone")  # or its stacks come from py-spy
    assert "the process was gone" in why
    assert set(absent) == {(2, DUMP)}
    assert "stopped" in missing(stopped[0])[2, DUMP]
    assert set(missing(held[0])) == {(1, DUMP)}
    assert "interpreter lock" in missing(held[0])[1, DUMP]
    verdicts = found.of_kind("verdict")
    assert [event["ranks"] for event in verdicts] == [[2], [0], [1]]
    told = {Path(event["folder"]) for event in found.of_kind("incident")}
    assert told == {stopped[2], hung[2], held[2]}, "the log of events says where the evidence is"


def test_a_dead_rank_is_named_dead_and_its_missing_evidence_explained(tmp_path: Path) -> None:
    options = ("--workers", "3", "--spares", "2", *inject("kill@8:1", "exit@16:2=3"))
    found = run(tmp_path, *options, script=("tests/jobs/groups.py", "24"))
    assert found.exit_code == 0, found.output
    killed, left = incidents(tmp_path)
    for (manifest, verdict, _), rank, how in ((killed, 1, "SIGKILL"), (left, 2, "code 3")):
        assert (verdict["ranks"], verdict["fault"]) == ([rank], "dead"), verdict["headline"]
        assert set(missing(manifest)) == {(rank, DUMP), (rank, STACKS)}
        assert how in missing(manifest)[rank, STACKS]


def test_only_the_newest_incidents_are_kept(tmp_path: Path) -> None:
    faults = inject("kill@4:1", "raise@8:0", "raise@12:2")
    options = ("--workers", "3", "--spares", "1", "--keep-incidents", "2", *faults)
    found = run(tmp_path, *options, script=("tests/jobs/groups.py", "16"))
    assert found.exit_code == 0, found.output
    newest = incidents(tmp_path)
    assert [m.faults[0]["fault"] for m, _, _ in newest] == ["raise", "raise"]
    for (_, verdict, _), rank in zip(newest, (0, 2), strict=True):
        assert (verdict["ranks"], verdict["fault"]) == ([rank], "raised"), verdict["headline"]
        assert "InjectedError" in verdict["headline"]


def test_no_incident_is_written_when_none_is_to_be_kept(tmp_path: Path) -> None:
    options = ("--workers", "2", "--keep-incidents", "0", *inject("raise@4:1"))
    found = run(tmp_path, *options, script=("jobs/bytelm.py", "--steps", "8"))
    assert found.exit_code == 0, found.output
    assert not list((tmp_path / "incidents").glob("*"))
