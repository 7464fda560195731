"""``keepstep receipt`` as it is typed: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keepstep.canary.plan import default_plan
from keepstep.canary.verdict import Verdict
from keepstep.cli import receipt_verify
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.receipt.drift import Live
from keepstep.receipt.keys import SigningKey, default_key, public_text, trusted_folder
from keepstep.stack.named import Stack
from tests.receipt.receipts import NEW, NOW, OTHER, cell_records, sealed
from tests.report.rehearsals import passing

LATER = (NOW + timedelta(days=1)).isoformat()


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    """A user's configuration and cache of its own, with a key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return default_key()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "out" / "receipts"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def one(folder: Path, own: SigningKey) -> Path:
    path = folder / "dp__new__gloo.json"
    path.write_bytes(sealed(key=own))
    return path


def verify(*arguments: object, at: str = LATER) -> int:
    return execute(["receipt", "verify", *map(str, arguments), "--at", at])


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# verify


def test_what_holds_is_verified(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(one) == ExitCode.PASS
    out = capsys.readouterr().out
    assert out.startswith(f"verified  {one}: signed with the key ")
    assert "valid until 2026-12-30T09:00:00Z (29 days)" in out


def test_a_changed_byte_is_refused(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = one.read_bytes()
    one.write_bytes(data.replace(b"A", b"B", 1))
    assert verify(one) == ExitCode.FAIL
    assert "REFUSED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("at", "code", "says"),
    [
        ("2026-12-30T08:59:59Z", ExitCode.PASS, "valid"),
        ("2026-12-30T09:00:00Z", ExitCode.FAIL, "expired on 2026-12-30T09:00:00Z"),
        ("2027-11-30", ExitCode.FAIL, "expired"),
        ("2026-11-30T08:56:00Z", ExitCode.PASS, "valid"),
        ("2026-11-30T08:54:00Z", ExitCode.FAIL, "one clock is wrong"),
    ],
)
def test_it_expires(
    at: str, code: ExitCode, says: str, one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(one, at=at) == code
    assert says in capsys.readouterr().out


def test_a_receipt_of_another_machine_is_verified_there_with_the_public_key_alone(
    one: Path, own: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / "colleague.pub"
    public.write_text(public_text(own.public))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another machine"))
    assert verify(one) == ExitCode.FAIL
    assert verify(one, "--key", public) == ExitCode.PASS
    trusted_folder().mkdir(parents=True)
    (trusted_folder() / "colleague.pub").write_text(public.read_text())
    assert verify(one) == ExitCode.PASS


def test_one_named_key_is_trusted_alone(one: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pub"
    other.write_text(public_text(OTHER.public))
    assert verify(one, "--key", other) == ExitCode.FAIL


def test_records_that_this_version_does_not_know_are_refused(
    folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "x.json"
    path.write_bytes(sealed({**cell_records(), "later": 1}, key=own))
    assert verify(path) == ExitCode.FAIL
    assert "later" in capsys.readouterr().out


def test_a_folder_stands_for_its_receipts(
    one: Path, folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.json").write_bytes(sealed(key=own))
    (folder / "notes.txt").write_text("not a receipt")
    assert verify(folder) == ExitCode.PASS
    assert verify(folder.parent) == ExitCode.PASS
    assert "2 receipts: 2 verified" in capsys.readouterr().out
    (folder / "c.json").write_bytes(sealed(key=OTHER))
    assert verify(folder.parent, "--json") == ExitCode.FAIL
    found = answer(capsys)
    assert found["answer"] == "no"
    assert [each["answer"] for each in found["receipts"]] == ["yes", "no", "yes"]


def test_no_receipt_proves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder) == ExitCode.INCONCLUSIVE
    assert "nothing is proven" in capsys.readouterr().out


def test_what_is_not_there_or_no_file_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    assert verify(tmp_path / "gone") == ExitCode.USAGE
    os.mkfifo(tmp_path / "pipe")
    assert verify(tmp_path / "pipe") == ExitCode.USAGE
    assert execute(["receipt", "verify", str(tmp_path), "--at", "tomorrow"]) == ExitCode.USAGE
    assert verify(tmp_path, "--key", tmp_path / "gone.pub") == ExitCode.USAGE
    assert verify(tmp_path, "--stack", "gone") == ExitCode.USAGE


# A whole rehearsal.


@pytest.fixture
def whole(one: Path, folder: Path, own: SigningKey) -> Path:
    """The receipt of a rehearsal that counts on one other."""
    import hashlib

    from keepstep.report.model import ReceiptFile

    digest = hashlib.sha256(one.read_bytes()).hexdigest()
    counted = ReceiptFile(file=f"receipts/{one.name}", sha256=digest, about="dp/new/gloo")
    found = passing().model_copy(update={"receipts": (counted,)})
    path = folder / "rehearsal.json"
    path.write_bytes(sealed(found.model_dump(mode="json"), kind="rehearsal", key=own))
    return path


def test_a_rehearsal_counts_on_its_receipts(
    whole: Path, one: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(whole) == ExitCode.PASS
    assert "all 1 receipts that it was made from" in capsys.readouterr().out
    one.write_bytes(sealed(cell_records(0.01), key=own))
    assert verify(one) == ExitCode.PASS, "well signed, and another one"
    assert verify(whole) == ExitCode.FAIL
    one.unlink()
    assert verify(whole) == ExitCode.INCONCLUSIVE
    assert "not here: dp__new__gloo.json" in capsys.readouterr().out


# Drift.


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> list[Live]:
    """What the stack `new` says when it is asked: the last one in the list."""
    answers = [Live(stack="new", facts={"torch.version": "2.15.0", "driver": "580.1"})]

    def find(name: str) -> Stack:
        if name != "new-2.15":
            raise ValueError(f"there is no stack {name}")
        return Stack(name=name, python="python")

    monkeypatch.setattr(receipt_verify, "find_stack", find)
    monkeypatch.setattr(
        receipt_verify, "ask", lambda stack, label: replace(answers[-1], stack=label)
    )
    return answers


@pytest.fixture
def bound(folder: Path, own: SigningKey) -> Path:
    path = folder / "bound.json"
    material = {"new": {"rank 0": {"torch.version": "2.15.0", "driver": "580.1"}}}
    path.write_bytes(sealed(key=own, material=material))
    return path


def test_a_drifted_stack_is_refused(
    bound: Path, live: list[Live], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(bound, "--stack", "new=new-2.15") == ExitCode.PASS
    assert "is what it was: 2 facts are the same" in capsys.readouterr().out
    live.append(Live(stack="", facts={"torch.version": "2.15.0", "driver": "590.2"}))
    assert verify(bound, "--stack", "new=new-2.15") == ExitCode.FAIL
    out = capsys.readouterr().out
    assert "the stack new has drifted: driver: was 580.1, is 590.2" in out


def test_a_stack_that_does_not_answer_cannot_be_checked(
    bound: Path, live: list[Live], capsys: pytest.CaptureFixture[str]
) -> None:
    live.append(Live(stack="", facts={}, unknown="python: no answer within 120 s"))
    assert verify(bound, "--stack", "new=new-2.15") == ExitCode.INCONCLUSIVE
    assert "no answer within 120 s" in capsys.readouterr().out


def test_receipts_of_other_stacks_say_nothing_of_this_one(
    bound: Path, live: list[Live], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(bound, "--stack", "new-2.15") == ExitCode.INCONCLUSIVE
    assert "but: new; where a label is not" in capsys.readouterr().out


# show


def test_what_differs_between_ranks_is_printed_first(
    folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"new": {**NEW["new"], "rank 2": {**NEW["new"]["rank 0"], "driver": "550.9"}}}
    path = folder / "odd.json"
    path.write_bytes(sealed(key=own, material=odd))
    assert execute(["receipt", "show", str(path)]) == ExitCode.PASS
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  RANKS DIFFER in driver (stack new):"
    assert lines[3] == "    550.9: rank 2"
    assert "  dp/new/gloo: pass, 1 run: as good as the reference" in lines
    assert execute(["receipt", "show", str(path), "--json"]) == ExitCode.PASS
    (found,) = answer(capsys)
    assert found["differences"][0]["values"]["550.9"] == ["rank 2"]
    assert found["records"]["verdict"]["verdict"] == "pass"


def test_every_kind_can_be_shown(
    folder: Path, own: SigningKey, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drill = passing().drills[0]
    path = folder / "hang.json"
    path.write_bytes(sealed(drill.model_dump(mode="json"), kind="drill", key=own))
    assert execute(["receipt", "show", str(folder)]) == ExitCode.PASS
    out = capsys.readouterr().out
    assert "hang/2.15/gloo: pass: rank 1 was held" in out
    assert "rehearsal of default.toml: pass" in out
    assert "14 cells, 4 drills, 1 receipt" in out


def test_the_verdict_of_a_rehearsal_is_that_of_its_drills_too(
    folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = passing().drills
    failed = first.model_copy(update={"verdict": Verdict.FAIL})
    found = passing().model_copy(update={"drills": (failed, *rest)})
    path = folder / "rehearsal.json"
    path.write_bytes(sealed(found.model_dump(mode="json"), kind="rehearsal", key=own))
    assert execute(["receipt", "show", str(path)]) == ExitCode.PASS
    assert "rehearsal of default.toml: fail: Do not move" in capsys.readouterr().out


def test_what_is_not_verified_is_shown_as_such(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.json").write_bytes(sealed(key=OTHER))
    (folder / "b.json").write_text("{}")
    assert execute(["receipt", "show", str(folder)]) == ExitCode.FAIL
    out = capsys.readouterr().out
    assert "NOT VERIFIED: signed with the key" in out
    assert "b.json: no receipt: it does not end with a line end" in out


def test_a_receipt_cannot_steer_the_terminal(
    folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    records = cell_records()
    records["verdict"]["reason"] = "fine\x1b[2J\u202e"
    path = folder / "a.json"
    path.write_bytes(sealed(records, key=own, material={"a\x1bb": {"rank\n0": {"x": "\x9b1m"}}}))
    assert execute(["receipt", "show", str(path)]) == ExitCode.PASS
    assert verify(path) == ExitCode.PASS
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)


# diff


def test_two_receipts_beside_each_other(
    one: Path, folder: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = folder / "same.json", folder / "other.json"
    same.write_bytes(sealed(cell_records(0.03), key=own))
    material = {"new": {"rank 0": {**NEW["new"]["rank 0"], "driver": "590.2"}}}
    other.write_bytes(sealed(cell_records(0.03), key=own, material=material))
    assert execute(["receipt", "diff", str(one), str(same)]) == ExitCode.PASS
    out = capsys.readouterr().out
    assert "no material fact differs" in out
    assert "runs.ranks.steps.seconds: A 0.02, B 0.03  (1.500 times)" in out
    assert execute(["receipt", "diff", str(one), str(other)]) == ExitCode.FAIL
    out = capsys.readouterr().out
    assert out.index("driver") < out.index("measured")
    assert execute(["receipt", "diff", str(one), str(other), "--json"]) == ExitCode.FAIL
    assert answer(capsys)["material"][0]["b"] == ["590.2"]


def test_what_is_not_verified_is_no_basis_for_a_comparison(one: Path, folder: Path) -> None:
    other = folder / "other.json"
    other.write_bytes(sealed(key=OTHER))
    assert execute(["receipt", "diff", str(one), str(other)]) == ExitCode.INCONCLUSIVE
    other.write_text("{}")
    assert execute(["receipt", "diff", str(one), str(other)]) == ExitCode.FAIL
    assert execute(["receipt", "diff", str(one), str(folder / "gone")]) == ExitCode.USAGE
    assert execute(["receipt", "diff", str(one), str(folder)]) == ExitCode.USAGE


# key


def test_the_public_key_is_printed(own: SigningKey, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["receipt", "key"]) == ExitCode.PASS
    out = capsys.readouterr().out
    assert out.startswith(public_text(own.public))
    assert own.id in out
    assert execute(["receipt", "key", "--json"]) == ExitCode.PASS
    assert answer(capsys)["id"] == own.id
    assert "PRIVATE" not in out


def test_the_clock_decides_without_a_time(folder: Path, own: SigningKey) -> None:
    path = folder / "now.json"
    path.write_bytes(sealed(key=own, now=datetime.now().astimezone()))
    assert execute(["receipt", "verify", str(path)]) == ExitCode.PASS


def test_the_page_names_stacks_as_the_receipts_of_the_default_plan_do(checkout: Path) -> None:
    page = (checkout / "docs" / "receipt.md").read_text()
    stacks = default_plan().stacks
    for typed in re.findall(r"keepstep receipt verify .*--stack (\S+)", page):
        label, _, name = typed.partition("=")
        assert stacks[label] == name
    told = re.findall(r"the stack (\S+) (?:is what|has drifted)", page)
    told += re.findall(r"ran on the stack (\S+) ", page)
    old, new = re.findall(r"^  stack (\S+) / (\S+)$", page, re.MULTILINE)[0]
    assert {*told, old, new} <= stacks.keys()
    assert told
