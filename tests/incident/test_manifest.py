"""The manifest of an incident: what is written is read again, anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepstep.incident.manifest import DUMP, Artifact, Manifest, ManifestError, describe
from tests.incident.making import facts, manifest


def test_what_is_written_is_read_again() -> None:
    artifacts = (
        Artifact(kind=DUMP, file="recorder_rank_0", size=3, sha256="00", taken=1.5, how="py-spy"),
        Artifact(kind=DUMP, reason="it did not answer"),
    )
    written = manifest((facts(0, artifacts=artifacts), facts(1, life="dead", why="SIGKILL")))
    assert Manifest.from_json(written.to_json()) == written
    assert Manifest.from_json(written.to_json().encode()) == written


def test_an_artifact_is_described_by_size_digest_and_time(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    found = describe(tmp_path / "x", DUMP, name="recorder_rank_0", how="side thread")
    assert (found.file, found.size, found.how) == ("recorder_rank_0", 3, "side thread")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found.sha256 == digest
    assert found.taken == (tmp_path / "x").stat().st_mtime


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x80\x04N.",
        b"null",
        b"[]",
        b"5",
        b"{}",
        b'{"version": 1}',
        b'{"version": 2, "members": []}',
        b'{"version": "\\ud800"}',
        b'{"version": 1, "members": 5}',
        b'{"version": 1, "members": [], "faults": [3]}',
        b"[" * 200_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("member", {"rank": "0"}),
        ("member", {"rank": True}),
        ("member", {"rank": -1}),
        ("member", {"rank": 10**30}),
        ("member", {"rank": 1}),
        ("member", {"why": ["x"]}),
        ("member", {"step": 1.5}),
        ("member", {"artifacts": 5}),
        ("member", {"artifacts": [[]]}),
        ("member", {"surprise": 1}),
        ("artifact", {"file": 5}),
        ("artifact", {"file": "other"}),
        ("artifact", {"sha256": None}),
        ("top", {"incident": []}),
        ("top", {"generation": "1"}),
        ("top", {"surprise": 1}),
    ],
)
def test_fields_that_do_not_fit_are_refused(where: str, change: dict[str, Any]) -> None:
    one = facts(0, artifacts=(Artifact(kind=DUMP, file="one"),))
    two = facts(1, artifacts=(Artifact(kind=DUMP, file="other"),))
    body = json.loads(manifest((one, two)).to_json())
    member = body["members"][0]
    {"top": body, "member": member, "artifact": member["artifacts"][0]}[where].update(change)
    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(body))


def test_a_hundred_thousand_members_are_read() -> None:
    body = json.loads(manifest((facts(0),)).to_json())
    body["members"] = [{**body["members"][0], "rank": rank} for rank in range(100_000)]
    assert len(Manifest.from_json(json.dumps(body)).members) == 100_000
