"""A report that was changed is found by the receipt beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep._version import __version__
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.receipt.keys import SigningKey, default_key
from keepstep.report.compared import page_of
from keepstep.report.data import as_json
from keepstep.report.model import ReceiptFile
from tests.receipt.receipts import NOW, sealed
from tests.report.rehearsals import inconclusive

AT = NOW.isoformat()


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    """A user's configuration of its own, with a key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return default_key()


@pytest.fixture
def out(tmp_path: Path, own: SigningKey) -> Path:
    """A rehearsal's folder: the receipt over all of it, and the report in both forms."""
    folder = tmp_path / "out"
    (folder / "receipts").mkdir(parents=True)
    found = inconclusive().model_copy(update={"receipts": (), "numbers": ()})
    path = folder / "receipts" / "rehearsal.json"
    path.write_bytes(sealed(found.model_dump(mode="json"), kind="rehearsal", key=own))
    write(folder, as_json(found, receipt_of(folder)))
    return folder


def receipt_of(folder: Path) -> ReceiptFile:
    data = (folder / "receipts" / "rehearsal.json").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return ReceiptFile(file="receipts/rehearsal.json", sha256=digest, about="rehearsal")


def write(folder: Path, report: str) -> None:
    (folder / "report.json").write_text(report)
    (folder / "report.html").write_text(page_of(report, receipt_of(folder)))


def verify(*arguments: object) -> int:
    return execute(["receipt", "verify", *map(str, arguments), "--at", AT])


def test_an_untouched_report_is_what_was_signed(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(out) == ExitCode.PASS
    told = capsys.readouterr().out
    assert "report.json says what was signed" in told
    assert "report.html is the page of the signed record" in told


def with_key(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.update({name: value})


def pass_all_cells(body: dict[str, Any]) -> None:
    for cell in body["rehearsal"]["cells"]:
        cell["state"] = "judged"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (with_key("verdict", "pass"), "verdict"),
        (with_key("sentence", "Ready to move."), "sentence"),
        (with_key("numbers", "All were equal."), "numbers"),
        (with_key("next", []), "next"),
        (with_key("signed_by", "everybody"), "signed_by"),
        (lambda body: body["receipt"].update(sha256="0" * 64), "receipt"),
        (lambda body: body["rehearsal"].update(seconds=1.0), "rehearsal"),
        (pass_all_cells, "rehearsal"),
    ],
)
def test_a_changed_report_is_refused(
    out: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    part: str,
) -> None:
    body = json.loads((out / "report.json").read_text())
    change(body)
    (out / "report.json").write_text(json.dumps(body))
    assert verify(out) == ExitCode.FAIL
    told = capsys.readouterr().out
    assert f"report.json does not say what was signed, in {part}: " in told
    assert "writes it again" in told
    assert "report.html was not compared" in told


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"verdict": "pass", "verdict": "fail"}', "[" * 200_000],
    ids=["empty", "a list", "cut off", "a key twice", "very deep"],
)
def test_what_is_no_report_is_refused(out: Path, text: str) -> None:
    (out / "report.json").write_text(text)
    assert verify(out) == ExitCode.FAIL


def test_a_changed_page_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = out / "report.html"
    page.write_text(page.read_text().replace("inconclusive", "pass", 1))
    assert verify(out) == ExitCode.FAIL
    told = capsys.readouterr().out
    assert "report.html is not the page of report.json, which says what was signed: " in told
    assert "the page was changed, or the order of entries in the other" in told
    (out / "report.json").unlink()
    assert verify(out) == ExitCode.INCONCLUSIVE
    assert "only compared beside its report.json" in capsys.readouterr().out


def reordered(value: Any) -> Any:
    """The same content, with the entries of each object the other way round."""
    if isinstance(value, dict):
        return {name: reordered(each) for name, each in reversed(value.items())}
    return [reordered(each) for each in value] if isinstance(value, list) else value


def test_a_page_is_not_blamed_for_a_report_in_another_order(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = out / "report.json"
    report.write_text(json.dumps(reordered(json.loads(report.read_text())), indent=1))
    assert verify(out) == ExitCode.INCONCLUSIVE
    told = capsys.readouterr().out
    assert "report.html cannot be compared: the page has its tables in the order of" in told
    assert "changed" not in told.partition("report:")[2]


def test_spaces_of_another_program_do_not_matter_to_the_page(out: Path) -> None:
    report = out / "report.json"
    report.write_text(json.dumps(json.loads(report.read_text())))
    assert verify(out) == ExitCode.PASS


def test_words_of_another_version_are_not_called_changed(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keepstep.report.compared.__version__", "99.0")
    assert verify(out) == ExitCode.PASS
    body = json.loads((out / "report.json").read_text())
    write(out, json.dumps(body | {"sentence": "Not decided."}))
    assert verify(out) == ExitCode.INCONCLUSIVE
    assert f"keepstep {__version__} can compare it" in capsys.readouterr().out
    body["rehearsal"]["seconds"] = 1
    write(out, json.dumps(body))
    assert verify(out) == ExitCode.FAIL


@pytest.mark.parametrize(("version", "doubt"), [("0.2.0.dev3", True), ("0.2.0", False)])
def test_words_of_a_development_version_may_be_of_another_state(
    own: SigningKey,
    out: Path,
    version: str,
    doubt: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in ("receipt.sealed", "report.compared"):
        monkeypatch.setattr(f"keepstep.{module}.__version__", version)
    path = out / "receipts" / "rehearsal.json"
    found = inconclusive().model_copy(update={"receipts": (), "numbers": ()})
    path.write_bytes(sealed(found.model_dump(mode="json"), kind="rehearsal", key=own))
    body = json.loads(as_json(found, receipt_of(out)))
    (out / "report.json").write_text(json.dumps(body | {"sentence": "Not decided."}))
    assert verify(path) == ExitCode.FAIL
    assert (f"another state of keepstep {version}" in capsys.readouterr().out) is doubt


def test_a_report_elsewhere_is_named(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt, mail = out / "receipts" / "rehearsal.json", tmp_path / "mail.json"
    (out / "report.json").replace(mail)
    (out / "report.html").unlink()
    assert verify(receipt, "--report", mail) == ExitCode.PASS
    mail.write_text(mail.read_text().replace("node-a", "node-b"))
    assert verify(receipt, "--report", mail) == ExitCode.FAIL
    assert verify(receipt, "--report", tmp_path / "gone.json") == ExitCode.USAGE
    assert "wanted a report.json" in capsys.readouterr().err


def test_a_report_needs_the_receipt_of_its_rehearsal(
    out: Path, own: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = out / "receipts" / "cell.json"
    cell.write_bytes(sealed(key=own))
    assert verify(cell, "--report", out / "report.json") == ExitCode.USAGE
    assert "wanted the receipt of its rehearsal" in capsys.readouterr().err


def test_receipts_alone_are_verified_without_a_report(out: Path) -> None:
    (out / "report.json").unlink()
    (out / "report.html").unlink()
    assert verify(out) == ExitCode.PASS


@pytest.mark.parametrize("left", ["report.json", "report.html", "rehearsal.json", "plan.toml"])
@pytest.mark.parametrize("inner", ["", "receipts"])
def test_a_rehearsal_without_the_receipt_of_the_whole_cannot_be_checked(
    out: Path, own: SigningKey, left: str, inner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The receipts of cells say nothing about a report, nor which others there were."""
    (out / "receipts" / "cell.json").write_bytes(sealed(key=own))
    for name in ("receipts/rehearsal.json", "report.json", "report.html"):
        (out / name).unlink()
    (out / left).write_text("{}")
    assert verify(out / inner) == ExitCode.INCONCLUSIVE
    told = capsys.readouterr().out
    assert f"not known  {out}: it holds {left}, and no receipt of the whole rehearsal" in told
    assert "(receipts/rehearsal.json)" in told
    assert verify(out / inner, "--json") == ExitCode.INCONCLUSIVE
    assert "no receipt of the whole" in json.loads(capsys.readouterr().out)["reason"]


def test_a_report_without_any_receipts_is_not_taken_for_one(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "receipts" / "rehearsal.json").unlink()
    (out / "receipts").rmdir()
    assert verify(out) == ExitCode.INCONCLUSIVE
    assert "it holds report.json, report.html, and no receipt of" in capsys.readouterr().out


def test_receipts_that_a_link_brings_are_held_against_the_report_beside_the_link(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    (forged / "receipts").symlink_to(out / "receipts")
    text = (out / "report.json").read_text()
    (forged / "report.json").write_text(text.replace("node-a", "node-b"))
    for path in (forged, forged / "receipts", forged / "receipts" / "rehearsal.json"):
        assert verify(path) == ExitCode.FAIL
        assert "report.json does not say what was signed" in capsys.readouterr().out
    (forged / "report.json").write_text(text)
    assert verify(forged) == ExitCode.PASS
